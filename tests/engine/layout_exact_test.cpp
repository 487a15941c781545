// The same gradients give the same bits, on one rank or many, under any layout, strategy and number of waves.
#include <gtest/gtest.h>

#include "muster/error.h"
#include "support/random_training.h"

namespace muster {
namespace {

class LayoutExact : public testing::TestWithParam<uint64_t> {};

TEST_P(LayoutExact, ManyRanksGiveTheBitsOfOne) {
  constexpr uint64_t kEach = 100;
  int planned = 0;
  for (uint64_t seed = GetParam() * kEach; seed < (GetParam() + 1) * kEach; ++seed) {
    const test::RandomCase c = test::random_case(seed);
    if (c.problem.ranks > 10) continue;
    Plan plan;
    try {
      plan = make_plan(c.problem, c.options);
    } catch (const InvalidArgument&) {
      continue;
    }
    ++planned;
    test::Training many = test::random_training(seed, c);
    std::vector<int64_t> scratch(c.problem.ranks);
    many.measure = [&](int32_t rank, const Optimizer& optimizer) { scratch[rank] = optimizer.scratch_bytes(); };
    const std::vector<test::RankMemory> ranks = test::train(many);
    const PlanSummary summary = summarize(c.problem, plan, c.options.cost);
    const bool capped = c.options.strategy == Strategy::kGlobal && c.options.scratch_bytes > 0;
    for (int32_t r = 0; r < c.problem.ranks && capped; ++r) {
      ASSERT_LE(summary.ranks[r].scratch_bytes, c.options.scratch_bytes);
      ASSERT_LE(scratch[r], c.options.scratch_bytes)
          << "seed " << seed << ", rank " << r << ", predicted " << summary.ranks[r].scratch_bytes;
    }
    const test::RankMemory one = test::train(test::on_one_rank(many))[0];
    ASSERT_EQ(test::difference(c.problem, ranks, one), "")
        << "seed " << seed << ", strategy " << name(c.options.strategy);
    for (size_t step = 0; step < one.stats.size(); ++step) {
      for (const test::RankMemory& rank : ranks) {
        ASSERT_EQ(rank.stats[step].grad_norm, one.stats[step].grad_norm) << "seed " << seed;
        for (size_t p = 0; p < one.stats[step].parameters.size(); ++p) {
          ASSERT_EQ(rank.stats[step].parameters[p].grad_norm, one.stats[step].parameters[p].grad_norm);
          ASSERT_EQ(rank.stats[step].parameters[p].update_rms, one.stats[step].parameters[p].update_rms);
        }
      }
    }
  }
  EXPECT_GT(planned, 80);
}

INSTANTIATE_TEST_SUITE_P(Random, LayoutExact, testing::Range(uint64_t{0}, uint64_t{6}));

}  // namespace
}  // namespace muster
