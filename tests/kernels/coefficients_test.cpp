#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/step_scale.h"
#include "muster/error.h"
#include "muster/group.h"

namespace muster::kernels {
namespace {

TEST(Coefficients, EverySetBringsSingularValuesNearOne) {
  EXPECT_THAT(coefficient_names(), testing::ElementsAre("jordan", "quintic", "polar_express", "polar_express_safe",
                                                        "polar_express_tight", "capped3", "capped4", "cans", "aol4"));
  for (const std::string_view name : coefficient_names()) {
    const Coefficients set = coefficients(name);
    EXPECT_EQ(set.steps.size(), name == "capped3" ? 3u : name == "capped4" || name == "aol4" ? 4u : 5u);
    // Three steps reach from 0.016 on, which is enough once the largest singular values are capped.
    for (double start = 0.02; start < 1; start += 0.001) {
      double x = start / set.safety;
      for (const Coefficients::Step& s : set.steps) x = s.a * x + s.b * std::pow(x, 3) + s.c * std::pow(x, 5);
      // jordan swings between 0.68 and 1.13; the others are closer.
      EXPECT_GT(x, 0.6) << name << " " << start;
      EXPECT_LT(x, 1.3) << name << " " << start;
    }
  }
}

// The bounds that coefficients.cpp states for them: what is capped must not fall below, and nothing may overshoot.
TEST(Coefficients, CappedSetsStayWithinTheirRippleFromTheirLowestValueOn) {
  for (const auto& [name, lowest] : {std::pair("capped3", 0.016), std::pair("capped4", 0.004)}) {
    for (double start = lowest; start <= 1; start *= 1.001) {
      double x = start;
      for (const Coefficients::Step& s : coefficients(name).steps)
        x = s.a * x + s.b * std::pow(x, 3) + s.c * std::pow(x, 5);
      EXPECT_NEAR(x, 1, 0.165) << name << " " << start;
    }
  }
}

TEST(Coefficients, AnUnknownNameIsRefusedWithTheKnownOnes) {
  EXPECT_THAT([] { coefficients("polar"); },
              testing::ThrowsMessage<InvalidArgument>(testing::HasSubstr("jordan, quintic, polar_express")));
}

TEST(StepScale, FollowsTheShape) {
  EXPECT_EQ(step_scale(parse_step_scale("none"), 8, 2), 1);
  EXPECT_EQ(step_scale(parse_step_scale("spectral"), 8, 2), 2);
  EXPECT_EQ(step_scale(parse_step_scale("spectral"), 2, 8), 0.5);
  EXPECT_EQ(step_scale(parse_step_scale("jordan"), 2, 8), 1);
  EXPECT_EQ(step_scale(parse_step_scale("jordan"), 8, 2), 2);
  EXPECT_DOUBLE_EQ(step_scale(parse_step_scale("rms"), 100, 25), 2);
  EXPECT_EQ(step_scale(parse_step_scale("fan"), 2, 8), 2);
  EXPECT_THROW(parse_step_scale("spectrum"), InvalidArgument);
}

}  // namespace
}  // namespace muster::kernels
