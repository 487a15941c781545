#include "run/bench.h"

#include <gtest/gtest.h>

#include "run/run_support.h"
#include "support/run_ranks.h"

namespace muster::run {
namespace {

TEST(Bench, RunsEveryPlanOnTheSameSteps) {
  const Problem problem = sample(3);
  const Workload workload(problem);
  std::vector<PlanOptions> cases(3, PlanOptions{.cost = CostTable::cpu()});
  cases[1].strategy = Strategy::kPerMatrix;
  cases[2].waves = 2;
  std::vector<std::vector<BenchResult>> results(3);
  test::run_ranks(3, [&](Communicator& communicator) {
    results[communicator.rank()] = bench(workload, communicator, cases, {.steps = 4, .steady = 3, .trace = true});
  });
  for (size_t i = 0; i < cases.size(); ++i) {
    const BenchResult& r = results[0][i];
    EXPECT_TRUE(r.bitwise_equal);
    EXPECT_EQ(r.step_ns.size(), 4U);
    EXPECT_GT(r.steady_ns, 0);
    EXPECT_GT(r.first_step_ns, 0);
    EXPECT_EQ(r.first_step_ns, results[2][i].first_step_ns);
    EXPECT_EQ(r.step_ns, results[2][i].step_ns);
    EXPECT_EQ(r.messages, results[2][i].messages);
    EXPECT_GT(r.messages, 0);
    EXPECT_GT(r.exchanges_max, 0);
    EXPECT_LE(r.exchanges_max, r.collectives);
    EXPECT_GE(r.transfers_max, r.exchanges_max);
    EXPECT_LE(r.transfers_max, 2 * r.messages);
    EXPECT_GT(r.kernels, 0);
    ASSERT_EQ(r.timelines.size(), 3U);
    EXPECT_TRUE(results[1][i].timelines.empty());
    for (const Timeline& timeline : r.timelines) {
      for (const TraceEvent& event : timeline.events) {
        EXPECT_GE(event.begin_ns, timeline.begin_ns) << event.name;
        EXPECT_LE(event.end_ns, timeline.end_ns + 1'000'000) << event.name;
      }
    }
  }
  EXPECT_EQ(results[0][2].waves, 2);
}

TEST(Bench, NoticesPlansThatEndDifferently) {
  const Problem problem = sample(2);
  const Workload workload(problem);
  // One wave and two: the flipped bits fall elsewhere.
  std::vector<PlanOptions> cases(2, PlanOptions{.cost = CostTable::cpu()});
  cases[0].waves = 1;
  cases[1].waves = 2;
  run_tampered(2, 0, [&](Communicator& communicator) {
    EXPECT_FALSE(bench(workload, communicator, cases, {.steps = 1})[1].bitwise_equal);
  });
}

TEST(Bench, TakesTheLowerMedian) {
  EXPECT_EQ(median({}), 0);
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(median({9, 1, 5}), 5);
  EXPECT_EQ(median({9, 1, 5, 7}), 5);
}

}  // namespace
}  // namespace muster::run
