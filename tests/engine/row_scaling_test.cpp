// Rows that a step multiplies by factors.
#include <cmath>
#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"
#include "muster/optimizer.h"
#include "support/overlapped.h"
#include "support/problems.h"
#include "support/random_training.h"
#include "support/row_factors.h"
#include "support/training.h"

namespace muster {
namespace {

using test::errors;
using test::factors_of;
using test::kFactors;
using test::number_of;
using test::training;
using test::with_factors;
using testing::Each;
using testing::HasSubstr;

std::vector<double> values(const test::RankMemory& rank, size_t p, WeightForm form) {
  std::vector<double> out;
  for (size_t i = 0; i < rank.elements[p].size(); ++i) {
    uint32_t bits = 0;
    uint16_t high = 0;
    uint16_t low = 0;
    if (form == WeightForm::kF32) std::memcpy(&bits, rank.weights[p].data() + 4 * i, 4);
    if (form == WeightForm::kBf16Master) std::memcpy(&bits, rank.extra[p].data() + 4 * i, 4);
    if (form == WeightForm::kBf16Mantissa) {
      std::memcpy(&high, rank.weights[p].data() + 2 * i, 2);
      std::memcpy(&low, rank.extra[p].data() + 2 * i, 2);
      bits = static_cast<uint32_t>(high) << 16 | low;
    }
    out.push_back(static_cast<double>(std::bit_cast<float>(bits)));
  }
  return out;
}

// Two matrices and one parameter of each elementwise algorithm, on one rank.
Problem every_algorithm() {
  Problem problem = test::one_parameter({12, 10}, 1, Algorithm::kMuon);
  for (const Algorithm algorithm : {Algorithm::kNorMuon, Algorithm::kAdamW, Algorithm::kLion}) {
    Parameter parameter = problem.parameters[0];
    parameter.name = "p" + std::to_string(problem.parameters.size());
    parameter.algorithm = algorithm;
    problem.parameters.push_back(parameter);
  }
  return problem;
}

TEST(RowScaling, MultipliesWhatTheStepWouldHaveLeft) {
  for (const WeightForm form : {WeightForm::kF32, WeightForm::kBf16Master, WeightForm::kBf16Mantissa}) {
    test::Training t = training(every_algorithm());
    for (Parameter& p : t.problem.parameters) p.dtype = form == WeightForm::kF32 ? Dtype::kF32 : Dtype::kBf16;
    t.form = [form](size_t) { return form; };
    t.steps = 1;
    t.options.groups[0].weight_decay = 0.3;
    const test::RankMemory plain = test::train(t)[0];
    const test::RankMemory scaled = test::train(with_factors(t))[0];
    ASSERT_EQ(plain.error + scaled.error, "");
    for (size_t p = 0; p < 4; ++p) {
      const std::vector<double> before = values(plain, p, form);
      const std::vector<double> after = values(scaled, p, form);
      for (size_t i = 0; i < before.size(); ++i) {
        const auto row = static_cast<int64_t>(i) / 10;
        const int32_t number = p == 0 && row == 0 ? kFactors - 1 : number_of(p, row);
        const double factor = p == 3 || number < 0 ? 1 : static_cast<double>(factors_of(0)[number]);
        ASSERT_NEAR(after[i], before[i] * factor, 0x1p-24 * std::abs(before[i] * factor)) << p << " " << i;
      }
    }
    ASSERT_EQ(plain.state.size(), scaled.state.size());
    for (size_t s = 0; s < plain.state.size(); ++s) {
      const std::string& name = plain.state[s].name;
      if (name.find(":weight") + 1 + name.find(":master") + 1 + name.find(":mantissa") + 1 != 0) continue;
      EXPECT_EQ(plain.state[s].data, scaled.state[s].data) << name;
    }
  }
}

// bf16 weights without more bits: update and factor share one rounding.
TEST(RowScaling, RoundsOnce) {
  test::Training exact = training(every_algorithm());
  exact.steps = 1;
  for (Parameter& p : exact.problem.parameters) p.dtype = Dtype::kBf16;
  test::Training nearest = exact;
  exact.form = [](size_t) { return WeightForm::kBf16Mantissa; };
  // Both start from the same values: those of bf16.
  const auto start = [](test::Training t) {
    t.before_step = [](Optimizer& optimizer, int) {
      std::vector<StateTensor> tensors;
      for (const StateInfo& info : optimizer.state()) {
        StateTensor tensor = optimizer.export_state(info.name);
        if (info.name.find(":mantissa") != std::string::npos) tensor.data.assign(tensor.data.size(), {});
        if (info.name.find(":weight") != std::string::npos) {
          for (size_t i = 0; i < tensor.data.size() / 2; ++i) {
            test::store(Dtype::kBf16, test::made_up(7, static_cast<int64_t>(i), 3), tensor.data.data() + 2 * i);
          }
        }
        tensors.push_back(std::move(tensor));
      }
      optimizer.import_state(tensors);
    };
    return t;
  };
  const test::RankMemory more_bits = test::train(with_factors(start(exact)))[0];
  const test::RankMemory rounded = test::train(with_factors(start(nearest)))[0];
  ASSERT_EQ(more_bits.error + rounded.error, "");
  for (size_t p = 0; p < 4; ++p) {
    const std::vector<double> expected = values(more_bits, p, WeightForm::kBf16Mantissa);
    for (size_t i = 0; i < expected.size(); ++i) {
      std::byte once[2];
      test::store(Dtype::kBf16, static_cast<float>(expected[i]), once);
      ASSERT_EQ(std::memcmp(once, rounded.weights[p].data() + 2 * i, 2), 0) << p << " " << i;
    }
  }
}

// All forms and algorithms, parameters that sit steps out, replicas that get weights or updates back.
TEST(RowScaling, GivesTheSameBitsOnEveryLayout) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const test::RandomCase random = test::random_case(seed);
    test::Training t = with_factors(test::random_training(seed, random));
    t.steps = 4;
    t.options.plan.scratch_bytes = 0;
    for (Group& group : t.options.groups) group.every = 1 + static_cast<int64_t>(seed % 3);
    t.present = [seed](int32_t, size_t p, int step) { return (p + static_cast<size_t>(step) + seed) % 3 != 0; };
    EXPECT_EQ(test::difference(t.problem, test::train(t), test::train(test::on_one_rank(t))[0]), "") << seed;
  }
}

TEST(RowScaling, ScalesParametersThatSitTheStepOut) {
  for (const bool sync : {false, true}) {
    for (const Algorithm algorithm : {Algorithm::kMuon, Algorithm::kAdamW}) {
      test::Training t = training(test::two_parameters(3, algorithm));
      test::replicate(t.problem);
      t.problem.grad_sync = sync;
      for (Parameter& p : t.problem.parameters) p.dtype = Dtype::kBf16;
      t.form = [](size_t) { return WeightForm::kBf16Master; };
      t.present = [](int32_t, size_t p, int) { return p == 0; };
      t.steps = 2;
      t = with_factors(t);
      const std::vector<test::RankMemory> ranks = test::train(t);
      ASSERT_THAT(errors(ranks), Each(""));
      EXPECT_EQ(test::difference(t.problem, ranks, test::train(test::on_one_rank(t))[0]), "");
      const std::vector<double> after = values(test::train(test::on_one_rank(t))[0], 1, WeightForm::kBf16Master);
      const int64_t length = t.problem.parameters[1].shape.back();
      for (size_t i = 0; i < after.size(); ++i) {
        const int32_t number = number_of(1, static_cast<int64_t>(i) / length);
        double expected = static_cast<double>(test::made_up(1, static_cast<int64_t>(i), 1));
        for (int step = 0; step < 2 && number >= 0; ++step) expected *= static_cast<double>(factors_of(step)[number]);
        ASSERT_NEAR(after[i], expected, 0x1p-22 * std::abs(expected));
      }
    }
  }
}

TEST(RowScaling, OverlappedStepsGiveTheSameBits) {
  test::Training t = with_factors(test::chain(3));
  t.steps = 4;
  t.options.groups[0].every = 1;
  t.options.groups.resize(2);
  t.options.groups[1].every = 2;
  t.group = [](size_t p) { return static_cast<int32_t>(p % 3 == 1 ? 1 : 0); };
  t.present = [](int32_t, size_t p, int step) { return p != 5 || step % 2 == 0; };
  const std::vector<test::RankMemory> early = test::train(t);
  ASSERT_THAT(errors(early), Each(""));
  EXPECT_EQ(test::difference(t.problem, early, test::train(test::without_overlap(test::on_one_rank(t)))[0]), "");
}

TEST(RowScaling, OverlappedStepsTakeTheFactorsTheyBeganWith) {
  test::Training t = with_factors(test::chain(2));
  t.steps = 1;
  std::vector<float> other(kFactors, 0.5F);
  t.before_step = [](Optimizer& optimizer, int step) { optimizer.begin_step({.row_factors = factors_of(step)}); };
  t.arrival = nullptr;
  const auto begun = test::train(t);
  ASSERT_THAT(errors(begun), Each(""));
  EXPECT_EQ(test::difference(t.problem, begun, test::train(test::without_overlap(test::on_one_rank([&] {
                               test::Training one = t;
                               one.before_step = nullptr;
                               return one;
                             }())))[0]),
            "");
  t.step_options = [&](int) { return StepOptions{.row_factors = other}; };
  EXPECT_THAT(errors(test::train(t)), Each(HasSubstr("row_factors: not those that the step began with")));
}

TEST(RowScaling, WithoutFactorsAStepIsAsBefore) {
  test::Training t = training(test::two_parameters(2));
  test::Training declared = with_factors(t);
  declared.step_options = nullptr;
  EXPECT_EQ(test::train(t)[0].weights, test::train(declared)[0].weights);
}

TEST(RowScaling, RefusesWhatIsWrong) {
  const test::Training good = with_factors(training(test::two_parameters(2)));
  const auto with = [&](std::vector<float> given, auto change) {
    test::Training t = good;
    change(t);
    t.step_options = [&](int) { return StepOptions{.row_factors = given}; };
    return errors(test::train(t));
  };
  const auto same = [](test::Training&) {};
  EXPECT_THAT(with({1, 1}, same), Each("step 1: row_factors: 2 factors, expected at least 5"));
  EXPECT_THAT(with({1, 1, 0, 1, 1}, same), Each("step 1: row_factors[2] 0: expected a finite number above 0"));
  EXPECT_THAT(with({1, 1, 1, NAN, 1}, same), Each("step 1: row_factors[3] nan: expected a finite number above 0"));
  const std::vector<float> ones(kFactors, 1);
  const auto scaling = [&](auto change) {
    return with(ones, [&](test::Training& t) { change(t.options.row_scaling); });
  };
  EXPECT_THAT(scaling([](auto& s) { s[1].parameter = 0; }), Each(HasSubstr("row_scaling: parameter 'w': twice")));
  EXPECT_THAT(scaling([](auto& s) { s[1].parameter = 2; }),
              Each(HasSubstr("row_scaling: parameter 2: expected 0 to 1")));
  EXPECT_THAT(scaling([](auto& s) { s[0].factor_of_row.pop_back(); }), Each(HasSubstr(" rows, expected ")));
  EXPECT_THAT(scaling([](auto& s) { s[0].factor_of_row[1] = -2; }), Each(HasSubstr("factor -2: expected at least -1")));
}

TEST(RowScaling, RanksMustHaveTheSameFactors) {
  test::Training t = with_factors(training(test::two_parameters(2)));
  std::atomic<int> calls = 0;
  const std::vector<float> other{1, 1, 1, 1, 0.5F};
  t.step_options = [&](int) { return StepOptions{.row_factors = calls++ == 0 ? factors_of(0) : other}; };
  EXPECT_THAT(errors(test::train(t)), Each("step 1: ranks disagree on its row_factors"));
}

}  // namespace
}  // namespace muster
