// A step that is recorded and replayed does what one does that is carried out call by call.
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "on_device.h"

namespace muster {
namespace {

using Graph = test::OnDevice;

test::RankMemory run(test::Training t, bool graph) {
  t.options.graph = graph;
  return test::train(t)[0];
}

std::vector<bool> replayed(const test::RankMemory& memory) {
  std::vector<bool> out;
  for (const StepStats& stats : memory.stats) out.push_back(stats.replayed);
  return out;
}

TEST_F(Graph, IsReplayedFromTheThirdStepOn) {
  test::Training t = test::mixed_training(1);
  t.steps = 5;
  EXPECT_EQ(replayed(run(t, true)), (std::vector<bool>{false, false, true, true, true}));
  EXPECT_EQ(replayed(run(t, false)), std::vector<bool>(5, false));
}

// A rank that has nothing of a group records when those do that have: in steps of another kind, though its calls are
// alike.
TEST_F(Graph, IsAnotherOneInStepsOfAnotherKindOnEveryRank) {
  test::Training t = test::training(test::two_parameters(1));
  t.options = test::gpu_options();
  t.options.groups.resize(2);
  t.options.groups[1].every = 2;
  t.group = [](size_t) { return 0; };
  t.steps = 6;
  EXPECT_EQ(replayed(run(t, true)), (std::vector<bool>{false, false, false, false, true, true}));
}

// Nor whatever else those that have matrices of a group make other calls for.
TEST_F(Graph, IsAnotherOneWithOtherCoefficientsOnEveryRank) {
  test::Training t = test::training(test::two_parameters(1));
  t.options = test::gpu_options();
  t.options.groups.resize(2);
  t.group = [](size_t) { return 0; };
  t.steps = 12;
  t.before_step = [](Optimizer& optimizer, int step) {
    Coefficients& set = optimizer.group(1).coefficients;
    if (step == 3) set.rescale = Coefficients::Rescale::kAol;
    if (step == 6) set.steps[0].a *= 0.99;  // other numbers are fine, if they leave the form as it is
    if (step == 8) set.steps.pop_back();
    if (step == 11) set.rescale = Coefficients::Rescale::kGram;
  };
  const std::vector<bool> expected{false, false, true, false, false, true, true, true, false, false, true, false};
  EXPECT_EQ(replayed(run(t, true)), expected);
}

#ifndef MUSTER_TEST_HOST_STREAM
// Other ranks would not record anew.
TEST_F(Graph, IsNotRecordedAnewWhereManyTakePartLater) {
  Problem problem = test::one_parameter({48, 32}, 1, Algorithm::kNorMuon);
  for (int i = 0; i < 20'000; ++i) {
    Parameter& p = problem.parameters.emplace_back(problem.parameters[0]);
    p.name = "gain " + std::to_string(i);
    p.shape = {4};
    p.algorithm = Algorithm::kAdamW;
  }
  test::Training t = test::training(problem);
  t.options = test::gpu_options();
  t.options.groups.resize(2);
  t.options.groups[1].every = 2;
  t.group = [](size_t p) { return p == 0 ? 0 : 1; };
  t.steps = 6;
  EXPECT_EQ(replayed(run(t, true)), (std::vector<bool>{false, false, false, false, true, true}));
}
#endif

void expect_alike(const test::Training& t) { EXPECT_EQ(test::difference(t.problem, run(t, true), run(t, false)), ""); }

// Gradients are elsewhere in every step as it is.
TEST_F(Graph, FollowsHyperparametersAndAddresses) {
  test::Training t = test::mixed_training(1);
  t.steps = 6;
  t.before_step = [](Optimizer& optimizer, int step) {
    for (int32_t g = 0; g < optimizer.groups(); ++g) {
      Group& group = optimizer.group(g);
      group.lr = 0.05 / (1 + step + g);
      group.weight_decay = 0.01 * step;
      group.momentum = 0.9 + 0.01 * step;
      group.beta1 = 0.8 + 0.02 * step;
      group.beta2 = 0.9 + 0.01 * step;
      group.eps = 1e-8 * (1 + step);
    }
  };
  expect_alike(t);
}

TEST_F(Graph, FollowsKindsOfSteps) {
  test::Training t = test::mixed_training(1);
  t.steps = 12;
  t.options.groups[1].every = 2;
  t.before_step = [](Optimizer& optimizer, int step) {
    Group& group = optimizer.group(0);
    group.decay = step % 3 == 0 ? Decay::kCautious : Decay::kPlain;
    group.weight_decay = 0.1;
    group.nesterov = step % 4 != 3;
    if (step == 6) group.coefficients = coefficients("jordan");
    if (step == 8) group.coefficients = coefficients("aol4");
    if (step == 10) group.scale = StepScale::kRms;
  };
  t.step_options = [](int step) {
    StepOptions options;
    if (step % 3 == 1) options.max_grad_norm = 0.5;
    options.grad_scale = 1.0 / (1 + step % 2);
    if (step % 4 == 2) options.non_finite = NonFinite::kSkipStep;
    if (step % 4 == 3) options.non_finite = NonFinite::kZero;
    return options;
  };
  expect_alike(t);
}

// Calls are not made again where all that decides them is as it was: here all of it stays but one thing a step.
TEST_F(Graph, FollowsTheOneThingThatChanges) {
  test::Training t = test::mixed_training(1);
  t.form = [](size_t p) { return p % 3 == 0 ? WeightForm::kBf16Master : WeightForm::kBf16; };
  const std::vector<std::function<void(Group&)>> changes{
      [](Group& group) { group.lr *= 0.5; },
      [](Group& group) { group.weight_decay = 0.3; },
      [](Group& group) { group.momentum = 0.8; },
      [](Group& group) { group.beta1 = 0.7; },
      [](Group& group) { group.beta2 = 0.8; },
      [](Group& group) { group.eps = 1e-3; },
      [](Group& group) { group.decay = Decay::kCautious; },
      [](Group& group) { group.nesterov = false; },
      [](Group& group) { group.momentum_form = MomentumForm::kSum; },
      [](Group& group) { group.scale = StepScale::kRms; },
      [](Group& group) { group.coefficients.steps.back().a *= 1.01; },
      [](Group& group) { group.coefficients.steps.back().b *= 1.01; },
      [](Group& group) { group.coefficients.steps.back().c *= 1.01; },
      [](Group& group) { group.coefficients.safety = 1.5; },
      [](Group& group) { group.coefficients = coefficients("jordan"); },
      [](Group& group) { group.coefficients.rescale = Coefficients::Rescale::kGram; },
      [](Group& group) { group.coefficients.safety = 1.25; },
      [](Group& group) { group.coefficients.rescale = Coefficients::Rescale::kAol; },
      [](Group& group) { group.every = 2; },
      [](Group&) {},  // other parameters take part in every other step
      [](Group&) {},
      [](Group& group) { group.every = 1; },
  };
  const int ways = static_cast<int>(changes.size());
  constexpr int kFirst = 3;  // is replayed
  t.steps = kFirst + 2 * ways + 18;
  t.before_step = [&](Optimizer& optimizer, int step) {
    const int i = step - kFirst;
    if (i >= 0 && i < 2 * ways) changes[static_cast<size_t>(i / 2)](optimizer.group(i % 2));
  };
  const int then = kFirst + 2 * ways;
  t.step_options = [=](int step) {
    StepOptions options;
    if (step >= then + 1) options.grad_scale = 0.5;
    if (step >= then + 2) options.max_grad_norm = 0.1;
    if (step >= then + 3) options.max_grad_norm = 0.05;
    return options;
  };
  t.gradient_moves = [=](size_t p, int step) { return step == then + 5 && p == 2; };
  t.weight_moves = [=](size_t p, int step) { return step == then + 6 + static_cast<int>(p); };
  t.present = [=](int32_t, size_t p, int step) { return step != then + 15 || p != 0; };
  expect_alike(t);
}

TEST_F(Graph, MakesNoCallsAgainWhereOnlyRatesChange) {
  test::Training t = test::mixed_training(1);
  t.form = [](size_t) { return WeightForm::kBf16; };
  t.steps = 8;
  t.before_step = [](Optimizer& optimizer, int step) {
    Group& group = optimizer.group(step % 2);
    group.lr = 0.05 / (1 + step);
    group.weight_decay = 0.01 * step;
    group.momentum = 0.9 + 0.01 * step;
    if (step == 6) group.eps = 1e-6;
  };
  t.gradient_moves = [](size_t, int) { return false; };
  const test::RankMemory memory = run(t, true);
  // The host's time for calls that pack.
  std::vector<bool> made;
  for (const StepStats& stats : memory.stats) made.push_back(stats.at(Stage::kPack) > 0);
  EXPECT_EQ(std::vector<bool>(made.begin() + 2, made.end()),
            (std::vector<bool>{false, false, false, false, true, false}));
  expect_alike(t);
}

TEST_F(Graph, RoundsStochasticallyAnewWhereNothingChanges) {
  test::Training t = test::mixed_training(1);
  t.form = [](size_t) { return WeightForm::kBf16Stochastic; };
  t.steps = 6;
  t.gradient_moves = [](size_t, int) { return false; };
  expect_alike(t);
}

TEST_F(Graph, FollowsGradientsThatComeAndGo) {
  test::Training t = test::mixed_training(1);
  t.steps = 8;
  t.present = [](int32_t, size_t p, int step) { return (p + static_cast<size_t>(step)) % 3 != 0; };
  expect_alike(t);
  t.step_options = [](int step) {
    StepOptions options;
    options.max_grad_norm = step < 4 ? 0.25 : 0.5;
    return options;
  };
  expect_alike(t);
}

TEST_F(Graph, SkipsAndGoesOn) {
  test::Training t = test::mixed_training(1);
  t.steps = 8;
  const auto good = t.gradient;
  t.gradient = [good](int32_t r, size_t p, int64_t element, int step) {
    const bool bad = (step == 3 || step == 5) && p == 4 && element == 1000;
    return bad ? std::numeric_limits<float>::infinity() : good(r, p, element, step);
  };
  t.step_options = [](int) {
    StepOptions options;
    options.non_finite = NonFinite::kSkipStep;
    return options;
  };
  expect_alike(t);
  // Infinity in a gradient that takes part leaves NaN behind.
  test::Training heedless = t;
  heedless.step_options = nullptr;
  EXPECT_NE(run(heedless, true).weights[4], run(t, true).weights[4]);
}

// Steps that are not recorded among steps that are.
TEST_F(Graph, FollowsStepsThatAreTraced) {
  test::Training t = test::mixed_training(1);
  t.steps = 8;
  t.step_options = [](int step) {
    StepOptions options;
    options.trace = step == 4;
    options.parameter_stats = step == 5;
    return options;
  };
  expect_alike(t);
}

}  // namespace
}  // namespace muster
