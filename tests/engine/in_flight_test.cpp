// Several waves in flight: the same bits as one, exchanges posted in the order of the plan, and as much scratch as was
// predicted.
#include <mutex>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/forwarding.h"
#include "support/problems.h"
#include "support/training.h"

namespace muster {
namespace {

constexpr int32_t kWaves = 5;

// Matrices of several shapes over all ranks, which some ranks hold nothing of; replicas of others, and of a table for
// AdamW, are averaged.
Problem mixture(int32_t ranks) {
  Problem problem = test::one_parameter({12, 10}, ranks, Algorithm::kNorMuon);
  problem.grad_sync = true;
  const auto add = [&](Shape shape, Placement placement, Algorithm algorithm) {
    Parameter p = problem.parameters[0];
    p.name = "p" + std::to_string(problem.parameters.size());
    p.shape = std::move(shape);
    p.layout.placements = {std::move(placement)};
    p.algorithm = algorithm;
    problem.parameters.push_back(std::move(p));
  };
  for (int i = 0; i < 3; ++i) {
    add({9, 14}, Placement::shard(0), Algorithm::kMuon);
    add({4, 6}, Placement::shard(1), Algorithm::kNorMuon);
    add({7, 5}, Placement::replicate(), Algorithm::kNorMuon);
  }
  add({300}, Placement::replicate(), Algorithm::kAdamW);
  add({40}, Placement::shard(0), Algorithm::kLion);
  return problem;
}

test::Training training_of(const Problem& problem, int32_t in_flight, Strategy strategy = Strategy::kGlobal) {
  test::Training t = test::training(problem);
  t.options.plan.strategy = strategy;
  if (strategy == Strategy::kGlobal) {
    t.options.plan.waves = kWaves;  // as many as that in an order of parameters; else at most
    t.options.plan.order.resize(problem.parameters.size());
    std::iota(t.options.plan.order.begin(), t.options.plan.order.end(), 0);
  }
  t.options.plan.scratch_bytes = 0;
  t.options.plan.in_flight = in_flight;
  return t;
}

class InFlight : public testing::TestWithParam<int32_t> {};

TEST_P(InFlight, GivesTheBitsOfOneRank) {
  const Problem problem = mixture(GetParam());
  const test::RankMemory one = test::train(test::on_one_rank(training_of(problem, 1)))[0];
  ASSERT_EQ(one.error, "");
  for (const Strategy strategy : {Strategy::kGlobal, Strategy::kChunked, Strategy::kGrouped}) {
    for (const int32_t in_flight : {1, 2, kAllInFlight}) {
      const test::Training t = training_of(problem, in_flight, strategy);
      ASSERT_GT(make_plan(problem, t.options.plan).waves.size(), 2U);
      EXPECT_EQ(test::difference(problem, test::train(t), one), "") << name(strategy) << ", " << in_flight;
    }
  }
}

TEST_P(InFlight, TakesNoMoreScratchThanPredicted) {
  const Problem problem = mixture(GetParam());
  for (const int32_t in_flight : {1, 2, kAllInFlight}) {
    test::Training t = training_of(problem, in_flight);
    const PlanSummary summary = summarize(problem, make_plan(problem, t.options.plan), t.options.plan.cost);
    t.options.plan.scratch_bytes = summary.scratch_bytes_max;  // the least that keeps this plan: no room for more lanes
    std::vector<int64_t> scratch(problem.ranks);
    t.measure = [&](int32_t rank, const Optimizer& optimizer) { scratch[rank] = optimizer.scratch_bytes(); };
    for (const std::string& error : test::errors(test::train(t))) EXPECT_EQ(error, "");
    for (const int64_t bytes : scratch) EXPECT_LE(bytes, summary.scratch_bytes_max) << in_flight;
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, InFlight, testing::Values(2, 3, 5));

class Recorder final : public test::ForwardingCommunicator {
 public:
  Recorder(std::unique_ptr<Communicator> inner, std::mutex& mutex, std::vector<std::string>& labels)
      : ForwardingCommunicator(std::move(inner)), mutex_(mutex), labels_(labels) {}

  using ForwardingCommunicator::exchange;
  std::unique_ptr<Request> exchange(std::span<const Send> sends, std::span<const Receive> receives,
                                    std::string_view label) override {
    if (rank() == 0 && label.starts_with("wave")) {
      const std::lock_guard lock(mutex_);
      labels_.emplace_back(label.substr(5));
    }
    return inner().exchange(sends, receives, label);
  }

 private:
  std::mutex& mutex_;
  std::vector<std::string>& labels_;
};

// The exchanges of one step on rank 0, in the order in which it posted them.
std::vector<std::string> posted(test::Training t) {
  std::mutex mutex;
  std::vector<std::string> labels;
  t.steps = 1;
  t.tamper = [&](std::unique_ptr<Communicator> inner) {
    return std::make_unique<Recorder>(std::move(inner), mutex, labels);
  };
  for (const std::string& error : test::errors(test::train(t))) EXPECT_EQ(error, "");
  return labels;
}

TEST(InFlightOrder, PostsAsManyWavesAheadAsThePlanSays) {
  const Problem problem = mixture(3);
  ASSERT_EQ(make_plan(problem, training_of(problem, 1).options.plan).waves.size(), kWaves);
  using testing::ElementsAre;
  EXPECT_THAT(posted(training_of(problem, 1)),
              ElementsAre("0 in", "1 in", "0 out", "2 in", "1 out", "3 in", "2 out", "4 in", "3 out", "4 out"));
  EXPECT_THAT(posted(training_of(problem, 2)),
              ElementsAre("0 in", "1 in", "2 in", "0 out", "3 in", "1 out", "4 in", "2 out", "3 out", "4 out"));
  EXPECT_THAT(posted(training_of(problem, kAllInFlight)),
              ElementsAre("0 in", "1 in", "2 in", "3 in", "4 in", "0 out", "1 out", "2 out", "3 out", "4 out"));
}

// modded-nanogpt #132 posts every reduce_scatter before it computes anything.
TEST(InFlightOrder, PostsAllExchangesInFirstForGrouped) {
  test::Training t = training_of(mixture(3), 0, Strategy::kGrouped);
  const std::vector<std::string> labels = posted(t);
  const size_t waves = make_plan(t.problem, t.options.plan).waves.size();
  ASSERT_EQ(labels.size(), 2 * waves);
  for (size_t w = 0; w < waves; ++w) {
    EXPECT_EQ(labels[w], std::to_string(w) + " in");
    EXPECT_EQ(labels[waves + w], std::to_string(w) + " out");
  }
}

}  // namespace
}  // namespace muster
