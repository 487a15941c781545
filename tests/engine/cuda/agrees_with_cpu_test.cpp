// What the device computes, beside what the CPU does: the same bits for AdamW, Lion, norms and decisions, nearly the
// same for what goes through products of matrices.
#include <bit>
#include <chrono>
#include <cmath>
#include <limits>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"
#include "on_device.h"

namespace muster {
namespace {

using AgreesWithCpu = test::OnDevice;
using testing::Each;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float value(Dtype dtype, const std::byte* from) {
  uint32_t bits = 0;
  std::memcpy(&bits, from, dtype == Dtype::kF32 ? 4 : 2);
  return std::bit_cast<float>(dtype == Dtype::kF32 ? bits : bits << 16);
}

// RMS of the difference over the RMS of what training changed.
double distance(Dtype dtype, const std::vector<std::byte>& start, const std::vector<std::byte>& a,
                const std::vector<std::byte>& b) {
  const auto width = static_cast<size_t>(byte_size(dtype));
  double apart = 0;
  double changed = 0;
  for (size_t i = 0; i < a.size(); i += width) {
    const auto of = [&](const std::vector<std::byte>& x) { return static_cast<double>(value(dtype, x.data() + i)); };
    apart += std::pow(of(a) - of(b), 2);
    changed += std::pow(of(a) - of(start), 2);
  }
  return std::sqrt(apart / changed);
}

test::RankMemory run(const test::Training& t, Device device) {
  test::Training here = t;
  here.options.device = device;
  return test::train(here)[0];
}

test::Training eventful() {
  test::Training t = test::mixed_training(1);
  t.steps = 5;
  for (Group& group : t.options.groups) group.lr = 0.1;  // far more than bf16 rounds
  t.options.groups[0].weight_decay = 0.1;
  t.options.groups[0].decay = Decay::kCautious;
  t.options.groups[1].weight_decay = 0.05;
  t.options.groups[1].every = 2;
  t.step_options = [](int step) {
    StepOptions options;
    options.grad_scale = 0.75;
    options.grad_norm = true;
    if (step % 2 == 1) options.max_grad_norm = 3;
    options.parameter_stats = step % 2 == 1;
    return options;
  };
  return t;
}

TEST_F(AgreesWithCpu, InBitsOfElementsAndNearlyInMatrices) {
  const test::Training t = eventful();
  const test::RankMemory device = run(t, test::gpu());
  const test::RankMemory cpu = run(t, {});
  test::Training none = t;
  none.steps = 0;
  const test::RankMemory start = run(none, {});
  ASSERT_EQ(device.error, "");
  ASSERT_EQ(cpu.error, "");
  for (size_t p = 0; p < t.problem.parameters.size(); ++p) {
    const Parameter& parameter = t.problem.parameters[p];
    if (!is_matrix_algorithm(parameter.algorithm)) {
      EXPECT_EQ(device.weights[p], cpu.weights[p]) << parameter.name;
      EXPECT_EQ(device.extra[p], cpu.extra[p]) << parameter.name;
      continue;
    }
    // Products of bf16, through five steps of a polynomial, against f32: some percent. Weights of
    // bf16 that round the other way weigh as much again.
    EXPECT_LT(distance(parameter.dtype, start.weights[p], cpu.weights[p], device.weights[p]), 0.25) << parameter.name;
  }
  ASSERT_EQ(device.state.size(), cpu.state.size());
  for (size_t s = 0; s < cpu.state.size(); ++s) {
    const std::string& name = cpu.state[s].name;
    EXPECT_EQ(device.state[s].name, name);
    const bool alike = name.ends_with(":momentum") || name.ends_with(":first") || name.ends_with(":second") ||
                       name.ends_with(":updates") || name.starts_with(":");
    EXPECT_TRUE(!alike || device.state[s].data == cpu.state[s].data) << name;
  }
}

TEST_F(AgreesWithCpu, InTheBitsOfNorms) {
  const test::Training t = eventful();
  const test::RankMemory device = run(t, test::gpu());
  const test::RankMemory cpu = run(t, {});
  ASSERT_EQ(device.stats.size(), 5U);
  for (size_t step = 0; step < 5; ++step) {
    const StepStats& there = device.stats[step];
    const StepStats& here = cpu.stats[step];
    EXPECT_EQ(there.step, here.step);
    EXPECT_GT(here.grad_norm, 0);
    EXPECT_EQ(there.grad_norm, here.grad_norm) << "step " << step;
    EXPECT_EQ(there.clip, here.clip) << "step " << step;
    EXPECT_EQ(there.clip < 1, step % 2 == 1);
    ASSERT_EQ(there.parameters.size(), here.parameters.size());
    for (size_t p = 0; p < here.parameters.size(); ++p) {
      const Parameter& parameter = t.problem.parameters[p];
      EXPECT_EQ(there.parameters[p].grad_norm, here.parameters[p].grad_norm) << parameter.name;
      const double rms = here.parameters[p].update_rms;
      EXPECT_GT(rms, 0) << parameter.name;
      const double tolerance = is_matrix_algorithm(parameter.algorithm) ? 0.1 * rms : 0;
      EXPECT_NEAR(there.parameters[p].update_rms, rms, tolerance) << parameter.name;
    }
  }
}

TEST_F(AgreesWithCpu, InTheNormBeforeAStep) {
  const Problem problem = test::two_parameters(1);
  double norms[2] = {};
  for (const bool there : {false, true}) {
    OptimizerOptions options = test::gpu_options();
    if (!there) options.device = {};
    test::Shards shards(problem, 0, options.device);
    const auto communicators = make_local_communicators(1);
    Optimizer optimizer(problem, options, *communicators[0], shards.memory);
    for (uint64_t step = 0; step < 4; ++step) {
      const std::vector<void*> gradients = shards.gradients(step);
      norms[there ? 1 : 0] += optimizer.grad_norm(gradients, 0.5);
      optimizer.step(gradients);
      EXPECT_EQ(optimizer.last_step().step, static_cast<int64_t>(step) + 1);
    }
    const std::vector<void*> gradients = shards.gradients(9);
    StepOptions clip;
    clip.max_grad_norm = 0.5;
    optimizer.step(gradients, clip);
    optimizer.synchronize();
    // What was not waited for is there afterwards.
    EXPECT_EQ(optimizer.last_step().grad_norm, optimizer.grad_norm(gradients)) << there;
    EXPECT_LT(optimizer.last_step().clip, 1) << there;
  }
  EXPECT_GT(norms[0], 0);
  EXPECT_EQ(norms[0], norms[1]);
}

TEST_F(AgreesWithCpu, InWhatIsDoneAboutGradientsThatAreNotFinite) {
  const Problem problem = test::two_parameters(1, Algorithm::kLion);
  for (const bool there : {false, true}) {
    for (const float bad : {kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      OptimizerOptions options = test::gpu_options();
      if (!there) options.device = {};
      test::Shards shards(problem, 0, options.device);
      const auto communicators = make_local_communicators(1);
      Optimizer optimizer(problem, options, *communicators[0], shards.memory);
      optimizer.step(shards.gradients(0));
      optimizer.synchronize();
      const auto before = shards.weights();
      const std::vector<void*> spoilt = shards.spoilt(1, 1, 77, bad);
      StepOptions with;
      with.grad_norm = true;

      with.non_finite = NonFinite::kError;
      EXPECT_THAT([&] { optimizer.step(spoilt, with); },
                  testing::ThrowsMessage<InvalidArgument>(
                      "step 2: parameter 'v': its gradient is not finite on 1 of the ranks"));
      EXPECT_EQ(shards.weights(), before);

      with.non_finite = NonFinite::kSkipStep;
      with.parameter_stats = true;
      const StepStats& skipped = optimizer.step(spoilt, with);
      EXPECT_TRUE(skipped.skipped);
      EXPECT_EQ(skipped.grad_norm, 0) << there;
      EXPECT_EQ(skipped.clip, 1);
      ASSERT_EQ(skipped.parameters.size(), 2U);
      EXPECT_EQ(skipped.parameters[1].grad_norm, 0);
      EXPECT_EQ(skipped.parameters[1].update_rms, 0);
      EXPECT_EQ(shards.weights(), before);
      with.parameter_stats = false;

      with.non_finite = NonFinite::kZero;
      const StepStats& zeroed = optimizer.step(spoilt, with);
      EXPECT_FALSE(zeroed.skipped);
      EXPECT_TRUE(std::isfinite(zeroed.grad_norm));
      EXPECT_EQ(shards.read(spoilt[1], 1)[77], 0) << "in the caller's gradients";
      EXPECT_NE(shards.weights(), before);

      with.non_finite = NonFinite::kIgnore;
      EXPECT_FALSE(std::isfinite(optimizer.step(shards.spoilt(2, 1, 77, bad), with).grad_norm));
      optimizer.synchronize();
    }
  }
}

TEST_F(AgreesWithCpu, InWhatATraceNames) {
  test::Training t = test::mixed_training(1);
  t.step_options = [](int step) {
    StepOptions options;
    options.trace = step == 2;
    return options;
  };
  std::vector<std::string> names[2];
  for (const bool there : {false, true}) {
    t.options.device = there ? test::gpu() : Device{};
    t.after = [&](Optimizer& optimizer) {
      const int64_t now =
          std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
              .count();
      for (const TraceEvent& event : optimizer.trace()) {
        if (event.name.starts_with("wait") || event.name.starts_with("control")) continue;  // nobody waits on a device
        names[there ? 1 : 0].push_back(event.name.substr(0, event.name.find(' ')));
        EXPECT_LE(event.begin_ns, event.end_ns) << event.name;
        EXPECT_LE(event.end_ns, now) << event.name;
        EXPECT_GT(event.begin_ns, now - int64_t{60'000'000'000}) << event.name;
      }
    };
    EXPECT_THAT(test::errors(test::train(t)), Each(""));
  }
  EXPECT_FALSE(names[1].empty());
  std::set<std::string> here(names[0].begin(), names[0].end());
  std::set<std::string> device(names[1].begin(), names[1].end());
  for (const char* stage : {"pack", "orthogonalize", "elementwise", "apply"}) {
    EXPECT_TRUE(here.contains(stage)) << stage;
    // A device applies to matrices at home what it has just orthogonalized, in one call.
    EXPECT_TRUE(device.contains(stage) || std::string_view(stage) == "apply") << stage;
  }
}

}  // namespace
}  // namespace muster
