// Rows that a step on a device multiplies by factors, which it reads there.
#include <atomic>
#include <cmath>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"
#include "on_device.h"
#include "support/overlapped.h"
#include "support/random_training.h"
#include "support/row_factors.h"

namespace muster {
namespace {

using testing::HasSubstr;

class RowScalingOnDevice : public test::OnDevice {
 protected:
  void SetUp() override {
    test::OnDevice::SetUp();
    if (!IsSkipped()) factors_.emplace(test::gpu());
  }
  std::optional<test::DeviceFactors> factors_;
};

TEST_F(RowScalingOnDevice, ManyRanksGiveTheBitsOfOne) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const test::RandomCase random = test::random_case(seed);
    if (random.problem.ranks > 6) continue;
    test::Training t = test::random_training(seed, random);
    t.options.plan.scratch_bytes = 0;
    t.options.plan.cost = test::gpu_table();
    t.options.device = test::gpu();
    t.steps = 4;
    for (Group& group : t.options.groups) group.every = 1 + static_cast<int64_t>(seed % 3);
    t.present = [seed](int32_t, size_t p, int step) { return (p + static_cast<size_t>(step) + seed) % 3 != 0; };
    t = factors_->give(std::move(t));
    EXPECT_EQ(test::difference(t.problem, test::train(t), test::train(test::on_one_rank(t))[0]), "") << seed;
  }
}

TEST_F(RowScalingOnDevice, ScalesParametersThatSitTheStepOut) {
  for (const bool sync : {false, true}) {
    test::Training t = test::training(test::two_parameters(2));
    test::replicate(t.problem);
    t.problem.grad_sync = sync;
    t.options = test::gpu_options();
    t.options.groups.resize(2);
    t.options.groups[1].every = 4;
    t.group = [](size_t p) { return static_cast<int32_t>(p); };
    t.present = [](int32_t, size_t p, int) { return p == 1; };  // one has no gradient, the other's turn does not come
    t.steps = 3;
    t = factors_->give(std::move(t));
    for (const test::RankMemory& rank : test::train(t)) {
      ASSERT_EQ(rank.error, "");
      for (size_t p = 0; p < 2; ++p) {
        for (int64_t i = 0; i < 120; ++i) {
          const int32_t number = p == 0 && i < 10 ? test::kFactors - 1 : test::number_of(p, i / 10);
          float expected = test::made_up(p, i, 1);
          for (int step = 0; step < 3 && number >= 0; ++step) expected *= test::factors_of(step)[number];
          ASSERT_EQ(reinterpret_cast<const float*>(rank.weights[p].data())[i], expected)
              << sync << " " << p << " " << i;
        }
      }
    }
  }
}

TEST_F(RowScalingOnDevice, OtherValuesNeedNoNewCapture) {
  test::Training t = factors_->give(test::mixed_training(1));
  t.steps = 6;
  const test::RankMemory replayed = test::train(t)[0];
  ASSERT_EQ(replayed.error, "");
  for (size_t step = 2; step < 6; ++step) EXPECT_TRUE(replayed.stats[step].replayed) << step;
  t.options.graph = false;
  EXPECT_EQ(test::difference(t.problem, replayed, test::train(t)[0]), "");
}

TEST_F(RowScalingOnDevice, OverlappedStepsGiveTheSameBits) {
  test::Training t = test::chain(1);
  t.options.device = test::gpu();
  t.steps = 4;
  t.options.groups.resize(2);
  t.options.groups[1].every = 2;
  t.group = [](size_t p) { return static_cast<int32_t>(p % 3 == 1 ? 1 : 0); };
  t.present = [](int32_t, size_t p, int step) { return p != 5 || step % 2 == 0; };
  t = factors_->give(std::move(t));
  const test::RankMemory early = test::train(t)[0];
  ASSERT_EQ(early.error, "");
  EXPECT_EQ(test::difference(t.problem, early, test::train(test::without_overlap(t))[0]), "");
}

TEST_F(RowScalingOnDevice, FactorsThatAreNotFiniteRefuseTheStep) {
  test::Training t = factors_->give(test::training(test::two_parameters(2)));
  const auto device = test::gpu_options();
  t.options.device = device.device;
  t.options.plan = device.plan;
  const std::span<const float> bad = factors_->upload({1, 1, NAN, 1, 1});
  t.steps = 1;
  t.step_options = [&](int) { return StepOptions{.row_factors = bad}; };
  for (const std::string& error : test::errors(test::train(t))) {
    EXPECT_THAT(error, HasSubstr("step 1: row_factors: not finite on 2 of the ranks"));
  }
}

TEST_F(RowScalingOnDevice, RanksMustHaveTheSameFactors) {
  test::Training t = factors_->give(test::training(test::two_parameters(2)));
  const auto device = test::gpu_options();
  t.options.device = device.device;
  t.options.plan = device.plan;
  t.steps = 1;
  std::atomic<int> calls = 0;
  t.step_options = [&](int) { return StepOptions{.row_factors = factors_->of(calls++)}; };
  for (const std::string& error : test::errors(test::train(t))) {
    EXPECT_THAT(error, HasSubstr("step 1: ranks disagree on its row_factors"));
  }
}

}  // namespace
}  // namespace muster
