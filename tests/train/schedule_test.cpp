#include "train/schedule.h"

#include <cmath>

#include <gtest/gtest.h>

namespace muster::train {
namespace {

using Form = Schedule::Form;

TEST(Schedule, FallsInALineWithTheBitsOfOneDivision) {
  for (int64_t done = 0; done < 7; ++done) EXPECT_EQ(rate({}, done, 7), 1 - static_cast<double>(done) / 7.0);
  EXPECT_EQ(rate({}, 7, 7), 0);
}

// modded-nanogpt: x = step / steps; from 1 - cooldown on, w = (1 - x) / cooldown and the rate is w + (1 - w) final.
TEST(Schedule, CoolsDownInTheLastPart) {
  const Schedule schedule{.form = Form::kCooldown, .cooldown = 0.4, .final_rate = 0.1};
  for (const int64_t done : {0, 3, 6}) EXPECT_EQ(rate(schedule, done, 10), 1) << done;
  EXPECT_DOUBLE_EQ(rate(schedule, 8, 10), 0.5 + 0.5 * 0.1);
  EXPECT_DOUBLE_EQ(rate(schedule, 9, 10), 0.25 + 0.75 * 0.1);
}

TEST(Schedule, FollowsACosine) {
  const Schedule schedule{.form = Form::kCosine};
  EXPECT_EQ(rate(schedule, 0, 4), 1);
  EXPECT_DOUBLE_EQ(rate(schedule, 1, 4), (1 + std::sqrt(0.5)) / 2);
  EXPECT_DOUBLE_EQ(rate(schedule, 2, 4), 0.5);
}

// iteration_extension of modded-nanogpt #132: more steps at the last rate.
TEST(Schedule, KeepsTheFinalRateInTheExtension) {
  for (const Form form : {Form::kLinear, Form::kCooldown, Form::kCosine}) {
    const Schedule schedule{.form = form, .final_rate = 0.1, .extension = 3};
    for (const int64_t done : {10, 11, 12}) EXPECT_EQ(rate(schedule, done, 10), 0.1) << done;
    EXPECT_GT(rate(schedule, 9, 10), 0.1);
  }
}

TEST(Schedule, NeverRises) {
  for (const Form form : {Form::kLinear, Form::kCooldown, Form::kCosine}) {
    for (const double cooldown : {0.01, 0.5, 1.0}) {
      const Schedule schedule{.form = form, .cooldown = cooldown, .final_rate = 0.2, .extension = 2};
      double before = 1;
      for (int64_t done = 0; done < 15; ++done) {
        EXPECT_LE(rate(schedule, done, 13), before);
        before = rate(schedule, done, 13);
        EXPECT_GE(before, 0.2);
      }
    }
  }
}

}  // namespace
}  // namespace muster::train
