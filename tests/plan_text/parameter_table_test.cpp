#include "plan_text/parameter_table.h"

#include <algorithm>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan_text/words.h"
#include "support/problems.h"

namespace muster::plan_text {
namespace {

using test::preset;
using Update = ParameterRow::Update;

std::vector<ParameterRow> rows_of(const Problem& problem, Strategy strategy = Strategy::kGlobal) {
  const PlanOptions options = test::with(strategy);
  const Plan plan = make_plan(problem, options);
  const PlanSummary summary = summarize(problem, plan, options.cost);
  return parameter_rows({.problem = problem, .plan = plan, .summary = summary, .cost = options.cost});
}

TEST(ParameterTable, HasEveryParameterOnceAndAddsUp) {
  for (const Strategy strategy : all_strategies()) {
    const Problem problem = preset("modded-nanogpt", "replicate=8");
    const std::vector<ParameterRow> rows = rows_of(problem, strategy);
    ASSERT_EQ(rows.size(), problem.parameters.size());
    int64_t elements = 0;
    int64_t matrices = 0;
    for (size_t p = 0; p < rows.size(); ++p) {
      EXPECT_EQ(rows[p].name, problem.parameters[p].name);
      EXPECT_EQ(rows[p].matrices > 0, is_matrix_algorithm(problem.parameters[p].algorithm));
      EXPECT_FALSE(rows[p].owners.empty()) << rows[p].name;
      EXPECT_TRUE(std::ranges::is_sorted(rows[p].owners));
      elements += rows[p].elements;
      matrices += rows[p].matrices;
    }
    EXPECT_EQ(elements, total_elements(problem));
    EXPECT_EQ(matrices, std::ssize(make_plan(problem, test::with(strategy)).owner));
  }
}

TEST(ParameterTable, SaysWhichRanksUpdateAParameter) {
  Problem problem = test::two_parameters(3);
  std::vector<ParameterRow> rows = rows_of(problem);
  EXPECT_EQ(rows[0].update, Update::kOwner);
  EXPECT_EQ(rows[0].matrices, 1);
  EXPECT_EQ(rows[0].owners.size(), 1U);
  EXPECT_EQ(rows[0].layout, "fsdp: shard(0)");
  EXPECT_EQ(rows[1].update, Update::kHolders);
  EXPECT_EQ(rows[1].matrices, 0);
  EXPECT_THAT(rows[1].owners, testing::ElementsAre(0, 1, 2));

  test::replicate(problem);
  rows = rows_of(problem);
  EXPECT_EQ(rows[1].update, Update::kShared);

  // Experts whole on each rank; a replica of them on two.
  problem = test::one_parameter({4, 6, 4}, 4);
  problem.meshes = {{"world", {{"fsdp", 2}, {"replicate", 2}}, {}}};
  problem.parameters[0].layout.placements = {Placement::shard(0), Placement::replicate()};
  rows = rows_of(problem, Strategy::kRouted);
  EXPECT_EQ(rows[0].update, Update::kReplica);
  EXPECT_EQ(rows[0].matrices, 4);
  EXPECT_THAT(rows[0].owners, testing::ElementsAre(0, 1, 2, 3));
}

TEST(ParameterTable, NamesFewRanksAndCountsMany) {
  EXPECT_EQ(ranks_words({}), "none");
  EXPECT_EQ(ranks_words({3}), "3");
  EXPECT_EQ(ranks_words({3, 4}), "3, 4");
  EXPECT_EQ(ranks_words({3, 4, 5}), "3-5");
  EXPECT_EQ(ranks_words({0, 2, 5, 9}), "0, 2, 5, 9");
  std::vector<int32_t> many(2048);
  std::iota(many.begin(), many.end(), 0);
  EXPECT_EQ(ranks_words(many), "0-2047");
  many.back() = 3000;
  EXPECT_EQ(ranks_words(many), "2,048 ranks, 0-3000");
}

}  // namespace
}  // namespace muster::plan_text
