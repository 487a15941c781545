// What validate() says of a group's hyperparameters.
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"
#include "muster/group.h"

namespace muster {
namespace {

std::string refusal(const Coefficients& set) {
  Group group;
  group.coefficients = set;
  try {
    validate(group);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

TEST(Hyperparameters, EveryBuiltInSetIsValid) {
  for (const std::string_view name : coefficient_names()) EXPECT_EQ(refusal(coefficients(name)), "") << name;
}

TEST(Hyperparameters, ASketchHasOneOfAFewNumbersOfColumns) {
  Coefficients set = coefficients("capped4");
  for (const int sketch : {0, 32, 64, 96}) {
    set.sketch = sketch;
    EXPECT_EQ(refusal(set), "") << sketch;
  }
  for (const int sketch : {-32, 5, 33, 1 << 20, std::numeric_limits<int>::max()}) {
    set.sketch = sketch;
    EXPECT_THAT(refusal(set), testing::HasSubstr("coefficients \"capped4\": sketch " + std::to_string(sketch) +
                                                 ", expected 0, 32, 64"));
  }
}

// The norm before the cap would leave singular values that the steps do not reach.
TEST(Hyperparameters, ASketchNeedsTheGramNorm) {
  Coefficients set = coefficients("capped3");
  for (const auto rescale : {Coefficients::Rescale::kNone, Coefficients::Rescale::kAol}) {
    set.rescale = rescale;
    EXPECT_EQ(refusal(set), "coefficients \"capped3\": sketch 96 needs the rescaling kGram");
    set.sketch = 0;
    EXPECT_EQ(refusal(set), "");
    set.sketch = 96;
  }
}

}  // namespace
}  // namespace muster
