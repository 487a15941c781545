#include "run/verify.h"

#include <mutex>
#include <optional>

#include <gtest/gtest.h>

#include "run/run_support.h"
#include "support/run_ranks.h"

namespace muster::run {
namespace {

// What rank 0 is told; every rank must be told the same.
std::optional<Difference> compared(const Problem& problem, int32_t liar) {
  const Workload workload(problem);
  std::mutex mutex;
  std::vector<std::optional<Difference>> told;
  run_tampered(problem.ranks, liar, [&](Communicator& communicator) {
    Verifier verifier(workload, communicator, {.steps = 2});
    verifier.run_one_rank([](int32_t, std::span<const std::byte>) {});
    const std::optional<Difference> difference = verifier.compare({.cost = CostTable::cpu()});
    const std::lock_guard lock(mutex);
    told.push_back(difference);
  });
  for (const auto& one : told) {
    EXPECT_EQ(one.has_value(), told[0].has_value());
    if (one && told[0]) {
      EXPECT_EQ(std::pair(one->element, one->rank), std::pair(told[0]->element, told[0]->rank));
    }
  }
  return told[0];
}

TEST(Verifier, FindsNoDifferenceWhereThereIsNone) {
  for (const int32_t ranks : {1, 2, 3, 5}) EXPECT_FALSE(compared(sample(ranks), -1).has_value()) << ranks << " ranks";
}

TEST(Verifier, NamesWhereASingleFlippedBitShows) {
  const std::optional<Difference> difference = compared(sample(3), 1);
  ASSERT_TRUE(difference.has_value());
  EXPECT_NE(difference->got, difference->expected);
  EXPECT_LT(difference->parameter, 2);  // nothing is sent for the vector
  EXPECT_GE(difference->element, 0);
  EXPECT_LT(difference->element, 20 * 12);
}

TEST(Verifier, ShowsEveryRankTheWholeResult) {
  const Problem problem = sample(3);
  const Workload workload(problem);
  std::mutex mutex;
  std::vector<std::vector<std::vector<std::byte>>> seen(3);
  test::run_ranks(3, [&](Communicator& communicator) {
    Verifier verifier(workload, communicator, {.steps = 1});
    verifier.run_one_rank([&](int32_t, std::span<const std::byte> whole) {
      const std::lock_guard lock(mutex);
      seen[communicator.rank()].emplace_back(whole.begin(), whole.end());
    });
  });
  ASSERT_EQ(seen[0].size(), 3U);
  EXPECT_EQ(seen[0], seen[1]);
  EXPECT_EQ(seen[0], seen[2]);
  std::vector<std::byte> start(seen[0][0].size());
  workload.fill_weights(0, kWhole, start.data());
  EXPECT_NE(seen[0][0], start);
}

}  // namespace
}  // namespace muster::run
