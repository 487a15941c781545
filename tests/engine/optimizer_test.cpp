#include "engine/optimizer.h"

#include <cmath>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"
#include "reference/reference.h"
#include "support/problems.h"

namespace muster::engine {
namespace {

using testing::HasSubstr;

// Runs each rank of a problem in a thread; returns what each threw.
template <typename Run>
std::vector<std::string> on_ranks(int32_t ranks, std::chrono::milliseconds timeout, Run run) {
  std::vector<std::unique_ptr<Communicator>> communicators = make_local_communicators(ranks, {timeout});
  std::vector<std::string> errors(ranks);
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        const auto kernels = kernels::make_cpu_kernels({1});
        run(*communicators[r], *kernels);
      } catch (const std::exception& error) {
        errors[r] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

// One step on one rank against the float64 reference, with nothing rounded on the way but f32 itself.
TEST(Optimizers, DoWhatTheReferenceDoes) {
  constexpr int64_t kRows = 24;
  constexpr int64_t kColumns = 40;
  for (const Algorithm algorithm : {Algorithm::kMuon, Algorithm::kNorMuon}) {
    Problem problem = test::one_parameter({kRows, kColumns}, 1, algorithm);
    problem.wire = Dtype::kF32;
    reference::Matrix weight{kRows, kColumns, {}};
    reference::Matrix grad{kRows, kColumns, {}};
    std::vector<float> weights;
    std::vector<float> gradients;
    for (int64_t i = 0; i < kRows * kColumns; ++i) {
      weights.push_back(static_cast<float>(std::sin(0.37 * static_cast<double>(i))));
      gradients.push_back(static_cast<float>(std::cos(1.71 * static_cast<double>(i * i % 977))));
      weight.data.push_back(weights.back());
      grad.data.push_back(gradients.back());
    }
    reference::MuonOptions options;
    options.wire = reference::Wire::kF32;
    const Coefficients set = coefficients("polar_express");
    for (const Coefficients::Step& step : set.steps) options.newton_schulz.steps.push_back({step.a, step.b, step.c});
    options.newton_schulz.safety = set.safety;
    options.normuon = algorithm == Algorithm::kNorMuon;
    options.norm.axis = reference::Axis::kColumns;  // the longer side
    options.apply = {0.02, reference::shape_scale(reference::Scale::kJordan, kRows, kColumns), 0.1,
                     reference::Decay::kCautious};
    reference::MuonState state;
    state.momentum.assign(kRows * kColumns, 0);
    state.variance.assign(kColumns, 0);
    for (int step = 0; step < 3; ++step) reference::muon_step(options, grad, state, weight);

    const auto errors = on_ranks(1, std::chrono::seconds(10), [&](Communicator& c, kernels::Kernels& k) {
      Optimizer optimizer(problem, {}, c, k, {{weights.data(), nullptr, WeightForm::kF32}}, {0}, 1);
      optimizer.group(0).weight_decay = 0.1;
      optimizer.group(0).decay = Decay::kCautious;
      const void* pointer = gradients.data();
      for (int step = 0; step < 3; ++step) optimizer.step({&pointer, 1});
    });
    EXPECT_EQ(errors[0], "");
    // Three steps of 0.02 with entries up to about 1: f32 products of length 40, amplified some 50 times by five steps
    // of a polynomial whose first slope is 8, stay below 1e-5.
    for (size_t i = 0; i < weights.size(); ++i) ASSERT_NEAR(weights[i], weight.data[i], 1e-5) << "element " << i;
  }
}

TEST(Optimizers, NameTheParameterThatRanksDisagreeOn) {
  const auto errors = on_ranks(2, std::chrono::seconds(10), [&](Communicator& c, kernels::Kernels& k) {
    Problem problem = test::one_parameter({8, 8}, 2);
    problem.parameters.push_back(problem.parameters[0]);
    problem.parameters[1].name = "v";
    if (c.rank() == 1) problem.parameters[1].multiplier = 2;
    std::vector<float> memory(64);
    Optimizer optimizer(problem, {}, c, k, {{memory.data(), nullptr}, {memory.data(), nullptr}}, {0, 0}, 1);
  });
  for (const std::string& error : errors) EXPECT_THAT(error, HasSubstr("parameter 1 ('v'"));
}

TEST(Optimizers, RefuseToGoOnAfterAPeerIsGone) {
  std::vector<std::string> second(2);
  const auto errors = on_ranks(3, std::chrono::milliseconds(500), [&](Communicator& c, kernels::Kernels& k) {
    const Problem problem = test::one_parameter({9, 9}, 3);
    std::vector<float> weights(81);
    std::vector<float> gradients(81, 1.0F);
    Optimizer optimizer(problem, {}, c, k, {{weights.data(), nullptr}}, {0}, 1);
    const void* pointer = gradients.data();
    optimizer.step({&pointer, 1});
    if (c.rank() == 2) return;  // never arrives at the second step
    try {
      optimizer.step({&pointer, 1});
    } catch (const CommError&) {
      try {
        optimizer.step({&pointer, 1});
      } catch (const CommError& again) {
        second[c.rank()] = again.what();
      }
      throw;
    }
  });
  for (int r = 0; r < 2; ++r) {
    EXPECT_THAT(errors[r], HasSubstr("step 2 broke off"));
    EXPECT_EQ(second[r], errors[r]);
  }
}

TEST(Optimizers, RefuseMemoryThatDoesNotFit) {
  const Problem problem = test::one_parameter({8, 8}, 1);
  auto error = [&](std::vector<ParameterMemory> memory, std::vector<int32_t> groups) {
    return on_ranks(1, std::chrono::seconds(10), [&](Communicator& c, kernels::Kernels& k) {
      Optimizer optimizer(problem, {}, c, k, memory, groups, 1);
    })[0];
  };
  EXPECT_THAT(error({}, {0}), HasSubstr("memory for 0"));
  EXPECT_THAT(error({{}}, {1}), HasSubstr("parameter 'w': group 1 of 1"));
  EXPECT_THAT(error({{nullptr, nullptr, WeightForm::kBf16}}, {0}), HasSubstr("parameter 'w': memory"));
}

}  // namespace
}  // namespace muster::engine
