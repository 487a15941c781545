// Trainings whose steps begin early.
#pragma once

#include <chrono>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"
#include "support/problems.h"
#include "support/random_training.h"

namespace muster::test {

inline std::vector<int32_t> backward(size_t parameters) {
  std::vector<int32_t> order(parameters);
  std::iota(order.rbegin(), order.rend(), 0);
  return order;
}

// A chain of matrices on so many ranks, and an AdamW parameter; four waves, in the order of backward.
inline Training chain(int32_t ranks, int32_t matrices = 6) {
  Problem problem = one_parameter({12, 10}, ranks, Algorithm::kNorMuon);
  for (int32_t i = 1; i < matrices; ++i) {
    problem.parameters.push_back(problem.parameters[0]);
    problem.parameters[i].name = "w" + std::to_string(i);
  }
  problem.parameters.push_back(problem.parameters[0]);
  problem.parameters.back().name = "gains";
  problem.parameters.back().algorithm = Algorithm::kAdamW;
  Training t = training(std::move(problem));
  t.options.overlap = true;
  t.options.plan.waves = 4;
  t.options.plan.order = backward(t.problem.parameters.size());
  t.arrival = [order = t.options.plan.order](int32_t, int) { return order; };
  return t;
}

// Of three ranks. In the second step rank 1 says of so many gradients that they are there, then of one that there is
// not: it throws, and leaves.
inline Training chain_that_rank_1_leaves(size_t after) {
  Training t = chain(3);
  t.timeout = std::chrono::seconds(10);
  t.arrival = [after, order = t.options.plan.order](int32_t rank, int step) {
    std::vector<int32_t> mine = order;
    if (rank != 1 || step != 1) return mine;
    mine.resize(after);
    mine.push_back(99);
    return mine;
  };
  return t;
}

// Ranks 0 and 2 break the step off and then refuse to go on.
inline void expect_refusals_after_rank_1_left(size_t after) {
  Training t = chain_that_rank_1_leaves(after);
  t.failed = [](Optimizer& optimizer, const std::string& error) {
    if (error.find("parameter 99") != std::string::npos) return;
    EXPECT_THROW(optimizer.step(std::vector<void*>(7)), CommError);
    EXPECT_THROW(optimizer.save("never"), CommError);
  };
  const std::vector<std::string> said = errors(train(t));
  EXPECT_THAT(said[1], testing::HasSubstr("parameter 99: expected 0 to 6"));
  EXPECT_THAT(said[0], testing::HasSubstr("step 2 broke off"));
  EXPECT_THAT(said[2], testing::HasSubstr("step 2 broke off"));
}

// A random problem. Each rank has an order of its own, and says of some gradients only in step() that they are there.
// Holders keep the state in every other one.
inline Training random_overlap(uint64_t seed, const RandomCase& c) {
  Training t = random_training(seed, seed % 2 == 0 ? c : with_held_state(c, seed));
  const size_t parameters = c.problem.parameters.size();
  t.options.plan.strategy = Strategy::kGlobal;
  t.step_options = nullptr;
  t.options.overlap = true;
  t.options.plan.scratch_bytes = 0;
  t.options.plan.waves = 1 + static_cast<int32_t>(seed % 6);
  if (seed % 3 > 0) t.options.plan.order = backward(parameters);
  t.arrival = [=](int32_t rank, int step) {
    std::vector<int32_t> order = backward(parameters);
    std::mt19937_64 random(seed * 100 + static_cast<uint64_t>(step) * 10 + static_cast<uint64_t>(rank));
    if (seed % 2 == 0) std::shuffle(order.begin(), order.end(), random);
    if (seed % 5 == 0) order.resize(random() % (parameters + 1));
    return order;
  };
  return t;
}

inline Training without_overlap(Training t) {
  t.options.overlap = false;
  t.options.plan.order.clear();
  t.arrival = nullptr;
  return t;
}

}  // namespace muster::test
