#include "report/findings.h"

#include <gtest/gtest.h>

namespace muster::report {
namespace {

TEST(Findings, NamesTheFastestAndHowMuchLongerTheOthersTake) {
  const std::vector<StepTime> steps{{"routed", 3'000'000}, {"global", 2'000'000}, {"chunked", 2'500'000}};
  EXPECT_EQ(
      fastest_words(steps, "optimizer step", "measured"),
      "global has the shortest optimizer step: 2.00 ms (measured). chunked takes 1.25× as long and routed 1.50×.");
}

TEST(Findings, OneStepIsComparedWithNothing) {
  EXPECT_EQ(fastest_words(std::vector<StepTime>{{"global", 2'000'000}}, "step", "simulated"),
            "global takes 2.00 ms per step (simulated).");
}

// On an unlucky day the plan is slower than another schedule; the words must not hide it.
TEST(Findings, TheFastestNeedNotBeOurs) {
  const std::vector<StepTime> steps{{"chunked", 1'000}, {"global", 3'000}};
  EXPECT_EQ(fastest_words(steps, "step", "measured"),
            "chunked has the shortest step: 1.00 µs (measured). global takes 3.00× as long.");
}

TEST(Findings, TimesThatReadAlikeAreATie) {
  const std::vector<StepTime> steps{{"routed", 2'000'001}, {"global", 2'000'000}};
  EXPECT_EQ(fastest_words(steps, "step", "predicted"),
            "global and routed have the shortest step: 2.00 ms (predicted).");
}

TEST(Findings, TellPaddingApartFromNone) {
  const std::vector<Padding> strategies{{"chunked", 1 << 20, 4 << 20}, {"grouped", 1024, 0}, {"global", 0, 3 << 20}};
  EXPECT_EQ(padding_words(strategies),
            "Zeros sent as padding per step: chunked 1.00 MiB (25 % of its bytes) and grouped 1.00 KiB; global none.");
  EXPECT_EQ(padding_words(std::vector<Padding>{{"a", 0, 1}, {"b", 0, 1}}), "a and b send no padding.");
  EXPECT_EQ(padding_words(std::vector<Padding>{{"a", 512, 1024}}),
            "Zeros sent as padding per step: a 512 B (50 % of its bytes).");
}

TEST(Findings, ListsReadAsSentences) {
  EXPECT_EQ(list_words(std::vector<std::string>{"a"}), "a");
  EXPECT_EQ(list_words(std::vector<std::string>{"a", "b", "c"}), "a, b and c");
}

}  // namespace
}  // namespace muster::report
