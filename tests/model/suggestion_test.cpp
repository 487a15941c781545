#include "model/suggestion.h"

#include <gtest/gtest.h>

namespace muster::model {
namespace {

const std::vector<std::string> kKnown{"plan", "bench", "verify", "simulate", "gpt2-small", "moe-397b"};

TEST(Suggestion, IsTheNearestName) {
  EXPECT_EQ(did_you_mean("simulat", kKnown), "; did you mean 'simulate'?");
  EXPECT_EQ(did_you_mean("simualte", kKnown), "; did you mean 'simulate'?");
  EXPECT_EQ(did_you_mean("plam", kKnown), "; did you mean 'plan'?");
  EXPECT_EQ(did_you_mean("plna", kKnown), "; did you mean 'plan'?");
  EXPECT_EQ(did_you_mean("gpt2small", kKnown), "; did you mean 'gpt2-small'?");
  EXPECT_EQ(did_you_mean("moe-379b", kKnown), "; did you mean 'moe-397b'?");
}

TEST(Suggestion, IsNothingFarFetched) {
  EXPECT_EQ(did_you_mean("train", kKnown), "");
  EXPECT_EQ(did_you_mean("x", kKnown), "");
  EXPECT_EQ(did_you_mean("", kKnown), "");
  EXPECT_EQ(did_you_mean("plan", {}), "");
  EXPECT_EQ(did_you_mean(std::string(1 << 20, 'a'), {std::string(1 << 20, 'a')}), "");
}

}  // namespace
}  // namespace muster::model
