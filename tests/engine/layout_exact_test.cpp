// The same gradients give the same bits, on one rank or many, under any layout, strategy and number of waves.
#include <gtest/gtest.h>

#include "muster/error.h"
#include "plan/replicas.h"
#include "support/random_training.h"

namespace muster {
namespace {

// Whether replicas orthogonalize something for themselves of which several ranks of each hold a part.
bool repeats_pieces(const Problem& problem, const Plan& plan) {
  const plan::Catalog catalog(problem);
  for (int32_t j = 0; j < catalog.matrix_count(); ++j) {
    if (plan::in_each_replica(plan, j) && catalog.holders_of(j).of_replica() > 1) return true;
  }
  return false;
}

enum class Outcome { kRefused, kSame };

Outcome check(uint64_t seed, const test::RandomCase& c) {
  Plan plan;
  try {
    plan = make_plan(c.problem, c.options);
  } catch (const InvalidArgument&) {
    return Outcome::kRefused;
  }
  const std::string which = "seed " + std::to_string(seed) + ", strategy " + std::string(name(c.options.strategy));
  test::Training many = test::random_training(seed, c);
  std::vector<int64_t> scratch(c.problem.ranks);
  many.measure = [&](int32_t rank, const Optimizer& optimizer) { scratch[rank] = optimizer.scratch_bytes(); };
  const std::vector<test::RankMemory> ranks = test::train(many);
  const PlanSummary summary = summarize(c.problem, plan, c.options.cost);
  const bool capped = plan.scratch_cap > 0;
  for (int32_t r = 0; r < c.problem.ranks && capped; ++r) {
    EXPECT_LE(summary.ranks[r].scratch_bytes, plan.scratch_cap);
    EXPECT_LE(scratch[r], plan.scratch_cap)
        << which << ", rank " << r << ", predicted " << summary.ranks[r].scratch_bytes;
  }
  const test::RankMemory one = test::train(test::on_one_rank(many))[0];
  EXPECT_EQ(test::difference(c.problem, ranks, one), "") << which;
  for (size_t step = 0; step < one.stats.size(); ++step) {
    for (const test::RankMemory& rank : ranks) {
      EXPECT_EQ(rank.stats[step].grad_norm, one.stats[step].grad_norm) << which;
      for (size_t p = 0; p < one.stats[step].parameters.size(); ++p) {
        EXPECT_EQ(rank.stats[step].parameters[p], one.stats[step].parameters[p]) << which;
      }
    }
  }
  return Outcome::kSame;
}

class LayoutExact : public testing::TestWithParam<uint64_t> {};

TEST_P(LayoutExact, ManyRanksGiveTheBitsOfOne) {
  constexpr uint64_t kEach = 100;
  int planned = 0;
  for (uint64_t seed = GetParam() * kEach; seed < (GetParam() + 1) * kEach; ++seed) {
    const test::RandomCase c = test::random_case(seed);
    if (c.problem.ranks > 10) continue;
    planned += check(seed, c) == Outcome::kSame;
    if (HasFailure()) return;
  }
  EXPECT_GT(planned, 80);
}

INSTANTIATE_TEST_SUITE_P(Random, LayoutExact, testing::Range(uint64_t{0}, uint64_t{6}));

class HeldState : public testing::TestWithParam<uint64_t> {};

TEST_P(HeldState, HasTheBitsOfOneRankThatKeepsItItself) {
  constexpr uint64_t kEach = 100;
  int planned = 0;
  for (uint64_t seed = GetParam() * kEach; seed < (GetParam() + 1) * kEach; ++seed) {
    test::RandomCase c = test::with_held_state(test::random_case(seed), seed);
    if (c.problem.ranks > 10) continue;
    planned += check(seed, c) == Outcome::kSame;
    if (HasFailure()) return;
  }
  EXPECT_GT(planned, 80);
}

INSTANTIATE_TEST_SUITE_P(Random, HeldState, testing::Range(uint64_t{0}, uint64_t{4}));

TEST(HeldState, OfReplicasHasTheBitsOfOneRank) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    test::RandomCase c = test::random_case(seed);
    if (c.problem.ranks > 4) continue;
    c = test::with_held_state(test::in_replicas(std::move(c), 2 + static_cast<int32_t>(seed % 2)), seed);
    check(seed, c);
    if (HasFailure()) return;
  }
}

TEST(Replicas, ThatRecomputeGiveTheBitsOfOneRank) {
  int repeated = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    test::RandomCase c = test::random_case(seed);
    if (c.problem.ranks > 4) continue;
    c = test::in_replicas(std::move(c), 2 + static_cast<int32_t>(seed % 2));
    if (check(seed, c) == Outcome::kSame) repeated += repeats_pieces(c.problem, make_plan(c.problem, c.options));
    if (HasFailure()) return;
  }
  EXPECT_GT(repeated, 20);
}

}  // namespace
}  // namespace muster
