// The same gradients give the same bits, on one rank or many, under any layout, strategy and number of waves.
#include <gtest/gtest.h>

#include "muster/error.h"
#include "support/random_problem.h"
#include "support/training.h"

namespace muster {
namespace {

// A random problem, with everything else about a training run varied too.
test::Training random_training(uint64_t seed, const test::RandomCase& c) {
  test::Training t;
  t.problem = c.problem;
  t.options.plan = c.options;
  t.options.groups.resize(2);
  t.options.groups[1].every = 1 + static_cast<int64_t>(seed % 3);
  t.options.groups[1].coefficients = coefficients(seed % 2 == 0 ? "jordan" : "aol4");
  t.options.groups[1].momentum_form = seed % 4 == 0 ? MomentumForm::kSum : MomentumForm::kEma;
  t.options.momentum = seed % 5 == 0 ? Dtype::kBf16 : Dtype::kF32;
  t.options.threads = seed % 11 == 0 ? 2 : 1;
  t.options.seed = seed;
  const bool sync = c.problem.grad_sync;
  t.gradient = [sync](int32_t rank, size_t p, int64_t element, int step) {
    const uint64_t whose = sync ? 1000 * static_cast<uint64_t>(rank) : 0;
    return test::made_up(p, element, 100 + static_cast<uint64_t>(step) + whose);
  };
  t.group = [seed](size_t p) { return static_cast<int32_t>((p + seed) % 2); };
  t.form = [seed](size_t p) {
    constexpr WeightForm kForms[] = {WeightForm::kBf16, WeightForm::kBf16Master, WeightForm::kBf16Mantissa,
                                     WeightForm::kBf16Stochastic};
    return kForms[(p / 2 + seed) % 4];
  };
  t.before_step = [](Optimizer& optimizer, int step) {
    for (int32_t g = 0; g < optimizer.groups(); ++g) {
      optimizer.group(g).lr = 0.02 / (1 + step);
      optimizer.group(g).weight_decay = 0.1;
      optimizer.group(g).decay = (step + g) % 2 == 0 ? Decay::kCautious : Decay::kPlain;
    }
  };
  if (seed % 3 == 0) {
    t.step_options = [](int) {
      StepOptions options;
      options.max_grad_norm = 0.5;
      options.parameter_stats = true;
      return options;
    };
  }
  if (seed % 4 == 1) {
    // Some parameters have no gradient anywhere, some shards have none.
    std::vector<std::vector<int64_t>> first(c.problem.ranks);
    for (int32_t r = 0; r < c.problem.ranks; ++r) {
      for (const auto& elements : test::held_elements(c.problem, r)) {
        first[r].push_back(elements.empty() ? -1 : elements[0]);
      }
    }
    t.present = [first, sync](int32_t rank, size_t p, int step) {
      const auto salt = static_cast<uint64_t>(step) + 7;
      if (test::made_up(p, 0, salt) < -0.5F) return false;
      return test::made_up(p, sync ? rank : first[rank][p], salt + 1000) > -0.5F;
    };
  }
  return t;
}

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
    test::Training many = random_training(seed, c);
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
