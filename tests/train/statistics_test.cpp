#include "train/statistics.h"

#include <cmath>
#include <numbers>
#include <vector>

#include <gtest/gtest.h>

namespace muster::train {
namespace {

// The lists and the values that modded-nanogpt #168 prints, to the digits it prints.
TEST(Statistics, ReproducesThePublishedTests) {
  const std::vector<double> baseline{3.2796, 3.2781, 3.2798, 3.2793};
  const std::vector<double> record{3.2758, 3.2807, 3.2776, 3.2757, 3.2793, 3.2764, 3.2795, 3.2788, 3.2785, 3.2748};
  EXPECT_NEAR(p_below(baseline, 3.28), 0.06323, 5e-6);
  EXPECT_NEAR(p_below(record, 3.28), 0.002439, 5e-7);
  EXPECT_NEAR(mean(baseline), 3.2792, 5e-5);
  EXPECT_NEAR(standard_deviation(baseline), 0.0008, 5e-5);
  const std::vector<double> times{132.5520, 132.8170, 132.7390, 132.7790};
  EXPECT_NEAR(mean(times), 132.7218, 5e-5);
  EXPECT_NEAR(standard_deviation(times), 0.1176, 5e-5);
}

TEST(Statistics, KnowsWhereStudentsTIsElementary) {
  // Near 0, what is left of 1 - x has lost two digits.
  for (const double t : {-40.0, -3.0, -0.5, 0.0, 1e-3, 2.0, 300.0}) {
    EXPECT_NEAR(student_t_cdf(t, 1), 0.5 + std::atan(t) / std::numbers::pi, 1e-13) << t;
    EXPECT_NEAR(student_t_cdf(t, 2), 0.5 + t / (2 * std::sqrt(2 + t * t)), 1e-13) << t;
    EXPECT_NEAR(student_t_cdf(t, 7) + student_t_cdf(-t, 7), 1, 1e-13) << t;
    // With many degrees, the normal distribution; the difference falls as 1 / degrees.
    EXPECT_NEAR(student_t_cdf(t, 1e7), std::erfc(-t / std::numbers::sqrt2) / 2, 1e-6) << t;
  }
}

TEST(Statistics, SaysNothingOfTooLittle) {
  EXPECT_TRUE(std::isnan(p_below(std::vector<double>{3}, 4)));
  EXPECT_TRUE(std::isnan(p_below(std::vector<double>{3, 3}, 3)));
  EXPECT_EQ(p_below(std::vector<double>{3, 3}, 4), 0);
  EXPECT_EQ(p_below(std::vector<double>{3, 3}, 2), 1);
  EXPECT_TRUE(std::isnan(mean({})));
  EXPECT_TRUE(std::isnan(standard_deviation(std::vector<double>{3})));
}

}  // namespace
}  // namespace muster::train
