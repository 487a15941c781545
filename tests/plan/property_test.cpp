// Properties that hold for every problem, over random ones. A failure prints the command that reproduces it alone.
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "muster/error.h"
#include "plan/plan_hash.h"
#include "plan/replicas.h"
#include "support/check_plan.h"
#include "support/random_problem.h"

namespace muster::test {
namespace {

constexpr uint64_t kCases = 12'000;
constexpr uint64_t kBlocks = 12;

// Whether a builder or a tight cap may refuse a valid problem.
bool may_refuse(const RandomCase& c, const std::string& reason) {
  if (c.options.strategy == Strategy::kGlobal) return c.options.scratch_bytes > 0 && reason.starts_with("scratch cap");
  return reason.starts_with("strategy grouped") || reason.starts_with("strategy routed");
}

enum class Outcome { kPlanned, kRefused };

Outcome check_seed(uint64_t seed) {
  RandomCase c = random_case(seed);
  if (seed % 4 == 3) c = with_held_state(std::move(c), seed);
  const std::string reproduce = "reproduce: MUSTER_SEED=" + std::to_string(seed) +
                                " build/tests/plan_test --gtest_filter='Properties.HoldForOneSeed'";
  try {
    EXPECT_EQ(violation(c.problem, c.options, real_planner()), "") << "strategy " << name(c.options.strategy) << "\n"
                                                                   << reproduce;
  } catch (const InvalidArgument& error) {
    EXPECT_TRUE(may_refuse(c, error.what())) << error.what() << "\n" << reproduce;
    return Outcome::kRefused;
  }
  return Outcome::kPlanned;
}

class PropertyBlock : public testing::TestWithParam<uint64_t> {};

TEST_P(PropertyBlock, HoldForRandomProblems) {
  uint64_t planned = 0;
  const uint64_t each = kCases / kBlocks;
  for (uint64_t seed = GetParam() * each; seed < (GetParam() + 1) * each; ++seed) {
    planned += check_seed(seed) == Outcome::kPlanned;
    if (HasFailure()) return;
  }
  // Caps and builders refuse some; most must be planned for the test to mean anything.
  EXPECT_GT(planned, each * 85 / 100);
}

INSTANTIATE_TEST_SUITE_P(Properties, PropertyBlock, testing::Range(uint64_t{0}, kBlocks));

// Any matrix may have an owner in each replica, whatever that costs.
TEST(Properties, HoldWhereReplicasHaveTheirOwnOwners) {
  Planner planner = real_planner();
  planner.plan = [](const Problem& problem, const PlanOptions& options, int32_t) {
    Plan plan = make_plan(problem, options);
    const plan::Catalog catalog(problem);
    plan.each_replica.assign(plan.owner.size(), false);
    for (int32_t j = 0; j < catalog.matrix_count(); ++j) {
      if (j % 3 == 2 || catalog.holders_of(j).find(plan.owner[j]) == nullptr) continue;
      plan.each_replica[j] = plan::can_repeat(catalog, catalog.class_at(j));
    }
    plan.hash = plan::plan_hash(problem, options.cost, plan);
    return plan;
  };
  int chosen = 0;
  for (uint64_t seed = 0; seed < 600; ++seed) {
    RandomCase c = random_case(seed);
    if (c.problem.ranks > 5) continue;
    c = in_replicas(std::move(c), 2 + static_cast<int32_t>(seed % 2));
    if (seed % 4 > 1) c = with_held_state(std::move(c), seed);
    c.options.scratch_bytes = 0;
    ASSERT_EQ(violation(c.problem, c.options, planner), "") << "seed " << seed << ", some in each replica";
    ASSERT_EQ(violation(c.problem, c.options, real_planner()), "") << "seed " << seed;
    chosen += !make_plan(c.problem, c.options).each_replica.empty();
  }
  EXPECT_GT(chosen, 100);
}

TEST(Properties, HoldForOneSeed) {
  const char* seed = std::getenv("MUSTER_SEED");
  check_seed(seed != nullptr ? std::strtoull(seed, nullptr, 10) : 0);
}

}  // namespace
}  // namespace muster::test
