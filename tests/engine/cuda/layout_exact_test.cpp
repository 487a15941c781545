// The same gradients give the same bits on one rank or many on a device, under any layout, strategy and number of
// waves.
#include <set>

#include <gtest/gtest.h>

#include "muster/error.h"
#include "on_device.h"
#include "support/random_training.h"

namespace muster {
namespace {

constexpr uint64_t kParts = 4;
constexpr int kProblems = 15;  // a part

class LayoutExactOnDevice : public test::OnDevice, public testing::WithParamInterface<uint64_t> {};

TEST_P(LayoutExactOnDevice, ManyRanksGiveTheBitsOfOne) {
  int planned = 0;
  std::set<Strategy> strategies;
  for (uint64_t seed = GetParam() * 10'000; planned < kProblems; ++seed) {
    test::RandomCase c = test::random_case(seed);
    if (seed % 2 == 1) c = test::with_held_state(std::move(c), seed);
    if (c.problem.ranks > 6) continue;
    const int32_t ranks_per_node = c.options.cost.ranks_per_node;
    c.options.cost = test::gpu_table();
    c.options.cost.ranks_per_node = ranks_per_node;
    try {
      make_plan(c.problem, c.options);
    } catch (const InvalidArgument&) {
      continue;
    }
    ++planned;
    strategies.insert(c.options.strategy);
    test::Training many = test::random_training(seed, c);
    many.options.device = test::gpu();
    many.steps = 4;
    const std::vector<test::RankMemory> ranks = test::train(many);
    const test::RankMemory one = test::train(test::on_one_rank(many))[0];
    ASSERT_EQ(test::difference(c.problem, ranks, one), "")
        << "seed " << seed << ", strategy " << name(c.options.strategy);
    if (!many.step_options) continue;  // then nobody has waited for norms
    for (size_t step = 0; step < one.stats.size(); ++step) {
      for (const test::RankMemory& rank : ranks) {
        ASSERT_EQ(rank.stats[step].grad_norm, one.stats[step].grad_norm) << "seed " << seed;
        ASSERT_EQ(rank.stats[step].clip, one.stats[step].clip) << "seed " << seed;
        for (size_t p = 0; p < one.stats[step].parameters.size(); ++p) {
          ASSERT_EQ(rank.stats[step].parameters[p], one.stats[step].parameters[p])
              << "seed " << seed << ", parameter " << p;
        }
      }
    }
  }
  EXPECT_GT(strategies.size(), 3U);
}

INSTANTIATE_TEST_SUITE_P(Random, LayoutExactOnDevice, testing::Range(uint64_t{0}, kParts));

}  // namespace
}  // namespace muster
