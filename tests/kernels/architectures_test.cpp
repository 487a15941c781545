#include "kernels/architectures.h"

#include <gtest/gtest.h>

namespace muster::kernels {
namespace {

TEST(Architectures, MachineCodeRunsOnLaterChipsOfItsMajorNumber) {
  EXPECT_TRUE(runs_on("80-real", 8, 0));
  EXPECT_TRUE(runs_on("80-real", 8, 9));
  EXPECT_FALSE(runs_on("89-real", 8, 0));
  EXPECT_FALSE(runs_on("80-real", 9, 0));
  EXPECT_FALSE(runs_on("80-real", 10, 0));
  EXPECT_TRUE(runs_on("100-real", 10, 3));
  EXPECT_FALSE(runs_on("100-real", 12, 0));
}

TEST(Architectures, CodeForOneChipRunsOnThatChipOnly) {
  EXPECT_TRUE(runs_on("90a-real", 9, 0));
  EXPECT_FALSE(runs_on("90a-real", 10, 0));
  EXPECT_FALSE(runs_on("90a", 10, 0));
  EXPECT_TRUE(runs_on("100f-real", 10, 3));
  EXPECT_FALSE(runs_on("100f", 12, 0));
}

TEST(Architectures, PtxRunsOnAllLaterChips) {
  EXPECT_TRUE(runs_on("80", 12, 0));
  EXPECT_TRUE(runs_on("80-virtual", 9, 0));
  EXPECT_FALSE(runs_on("80", 7, 5));
}

TEST(Architectures, OneOfSeveralIsEnough) {
  constexpr auto kAll = "80-real;89-real;90a-real;100-real";
  EXPECT_TRUE(runs_on(kAll, 8, 6));
  EXPECT_TRUE(runs_on(kAll, 9, 0));
  EXPECT_TRUE(runs_on(kAll, 10, 0));
  EXPECT_FALSE(runs_on(kAll, 7, 5));
  EXPECT_FALSE(runs_on(kAll, 12, 0));
  EXPECT_FALSE(runs_on("", 9, 0));
}

// A build for sm_90 was once taken for one with the GEMM for sm_90a, whose kernels are empty in it.
TEST(Architectures, OnlySm90aHasTheProductsOfHopper) {
  EXPECT_TRUE(has_sm90a("90a-real"));
  EXPECT_TRUE(has_sm90a("80-real;90a"));
  for (const auto* compiled : {"", "90", "90-real", "80;90", "190a", "native", "all"}) {
    EXPECT_FALSE(has_sm90a(compiled)) << compiled;
  }
}

TEST(Architectures, WordsOfCMakeAreTakenAsAnyChip) { EXPECT_TRUE(runs_on("native", 7, 5)); }

}  // namespace
}  // namespace muster::kernels
