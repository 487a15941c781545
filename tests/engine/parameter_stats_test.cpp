// Statistics per parameter: against the float64 reference, and the same bits on any number of ranks.
#include <cmath>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/optimizer.h"
#include "reference/reference.h"
#include "support/oracle.h"
#include "support/problems.h"
#include "support/training.h"

namespace muster {
namespace {

using testing::Each;

// A wide and a tall matrix, a stack, one that is cut into heads, and one of AdamW.
Problem problem(int32_t ranks, Algorithm algorithm) {
  Problem problem = test::one_parameter({24, 40}, ranks, algorithm);
  const auto add = [&](const char* name, Shape shape) -> Parameter& {
    Parameter& p = problem.parameters.emplace_back(problem.parameters[0]);
    p.name = name;
    p.shape = std::move(shape);
    return p;
  };
  add("tall", {56, 16});
  add("stack", {3, 8, 20});
  add("heads", {12, 18}).matrices.rows.assign(2, Block{6, {}, {}});
  add("bias", {33}).algorithm = Algorithm::kAdamW;
  return problem;
}

test::Training watched(Problem made, Dtype wire = Dtype::kF32) {
  test::Training t = test::training(std::move(made));
  t.problem.wire = wire;
  t.options.groups[0].weight_decay = 0.1;
  t.step_options = [](int) {
    StepOptions options;
    options.parameter_stats = true;
    return options;
  };
  return t;
}

reference::NewtonSchulz newton_schulz(const Coefficients& set) {
  reference::NewtonSchulz out;
  for (const Coefficients::Step& step : set.steps) out.steps.push_back({step.a, step.b, step.c});
  out.safety = set.safety;
  return out;
}

// RMS of sigma^2 - 1 over the matrices of a parameter whose updates are these.
double orthogonality_error(const Parameter& parameter, const reference::Vector& update, const Coefficients& set,
                           reference::Wire wire) {
  double squares = 0;
  double lines = 0;
  const auto matrices = test::matrix_elements(parameter);
  const bool two = parameter.matrices.rows.size() == 2;
  for (const std::vector<int64_t>& elements : matrices) {
    const int64_t columns = parameter.shape.back();
    const int64_t rows = static_cast<int64_t>(elements.size()) / columns;
    EXPECT_EQ(rows, two ? 6 : parameter.shape[parameter.shape.size() - 2]);
    reference::Matrix u{rows, columns, {}};
    for (const int64_t e : elements) {
      u.data.push_back(reference::round_to_wire(update[static_cast<size_t>(e)], wire));
    }
    reference::Matrix o = reference::newton_schulz(u, newton_schulz(set));
    if (rows > columns) o = reference::transpose(o);
    reference::Matrix gram = reference::multiply(o, reference::transpose(o));
    for (int64_t i = 0; i < gram.rows; ++i) gram.at(i, i) -= 1;
    squares += std::pow(reference::frobenius_norm(gram), 2);
    lines += static_cast<double>(gram.rows);
  }
  return std::sqrt(squares / lines);
}

double rms(const reference::Vector& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return std::sqrt(squares / static_cast<double>(values.size()));
}

TEST(ParameterStats, AgreeWithTheReference) {
  for (const Algorithm algorithm : {Algorithm::kMuon, Algorithm::kNorMuon}) {
    for (const Dtype wire : {Dtype::kF32, Dtype::kBf16}) {
      test::Training t = watched(problem(1, algorithm), wire);
      const Coefficients set = t.options.groups[0].coefficients;
      const std::vector<Parameter>& parameters = t.problem.parameters;
      std::vector<reference::Vector> momenta;
      for (const Parameter& p : parameters) momenta.emplace_back(element_count(p.shape));
      std::vector<std::vector<float>> before;
      for (size_t p = 0; p < parameters.size(); ++p) {
        for (int64_t i = 0; i < element_count(parameters[p].shape); ++i) {
          before.resize(p + 1);
          before[p].push_back(test::made_up(p, i, 1));
        }
      }
      for (int step = 0; step < 3; ++step) {
        t.steps = step + 1;
        const test::RankMemory rank = test::train(t)[0];
        ASSERT_EQ(rank.error, "");
        for (size_t p = 0; p < parameters.size(); ++p) {
          const ParameterStats& stats = rank.stats.back().parameters[p];
          reference::Vector grad;
          reference::Vector change;
          reference::Vector weight;
          const auto* const after = reinterpret_cast<const float*>(rank.weights[p].data());
          for (int64_t i = 0; i < element_count(parameters[p].shape); ++i) {
            grad.push_back(static_cast<double>(t.gradient(0, p, i, step)));
            weight.push_back(static_cast<double>(after[i]));
            change.push_back(weight.back() - static_cast<double>(before[p][static_cast<size_t>(i)]));
          }
          before[p].assign(after, after + weight.size());
          const std::string which = parameters[p].name + " in step " + std::to_string(step);
          // Sums are exact and rounded once; the change is a difference of f32 values, in f32.
          const double elements = static_cast<double>(grad.size());
          EXPECT_NEAR(stats.grad_norm, rms(grad) * std::sqrt(elements), 1e-12 * std::sqrt(elements)) << which;
          EXPECT_NEAR(stats.weight_rms, rms(weight), 1e-12) << which;
          EXPECT_NEAR(stats.update_rms, rms(change), 1e-7 * rms(change)) << which;
          if (parameters[p].algorithm == Algorithm::kAdamW) {
            EXPECT_EQ(stats.orthogonality_error, 0) << which;
            continue;
          }
          const auto rounded = wire == Dtype::kF32 ? reference::Wire::kF32 : reference::Wire::kBf16;
          const reference::Vector update = reference::momentum_update({}, grad, momenta[p]);
          const double expected = orthogonality_error(parameters[p], update, set, rounded);
          EXPECT_GT(expected, 0.02) << which;  // five steps are not exact
          // Products of f32, and momentum whose last bit may round an update to its bf16 neighbour.
          EXPECT_NEAR(stats.orthogonality_error, expected, wire == Dtype::kF32 ? 1e-4 : 2e-3) << which;
        }
      }
    }
  }
}

TEST(ParameterStats, AreTheSameBitsOnAnyNumberOfRanks) {
  for (const bool replicas : {false, true}) {
    for (const Strategy strategy : all_strategies()) {
      test::Training one = watched(problem(1, Algorithm::kNorMuon), Dtype::kBf16);
      const test::RankMemory expected = test::train(one)[0];
      for (const int32_t ranks : {2, 3, 5}) {
        test::Training many = watched(problem(ranks, Algorithm::kNorMuon), Dtype::kBf16);
        if (replicas) test::replicate(many.problem);
        many.options.plan.strategy = strategy;
        if (strategy == Strategy::kGrouped) continue;  // wants its own groups
        const auto all = test::train(many);
        ASSERT_THAT(test::errors(all), Each("")) << name(strategy);
        for (const test::RankMemory& rank : all) {
          for (size_t step = 0; step < rank.stats.size(); ++step) {
            for (size_t p = 0; p < rank.stats[step].parameters.size(); ++p) {
              EXPECT_EQ(rank.stats[step].parameters[p], expected.stats[step].parameters[p]) << name(strategy);
            }
          }
        }
      }
    }
  }
}

// An update of more elements than are watched at once, by rows of a matrix and along a range.
TEST(ParameterStats, WatchLargeParametersPieceByPiece) {
  Problem large = test::one_parameter({3, int64_t{1} << 21}, 1, Algorithm::kAdamW);
  large.parameters.push_back(large.parameters[0]);
  large.parameters[1].name = "tall";
  large.parameters[1].shape = {(int64_t{1} << 21) + 77, 3};
  large.parameters[1].algorithm = Algorithm::kMuon;
  test::Training t = watched(large);
  t.steps = 1;
  const test::RankMemory watched_rank = test::train(t)[0];
  ASSERT_EQ(watched_rank.error, "");
  t.step_options = nullptr;
  const test::RankMemory plain = test::train(t)[0];
  for (size_t p = 0; p < 2; ++p) {
    EXPECT_EQ(watched_rank.weights[p], plain.weights[p]) << "watching changes nothing";
    reference::Vector change;
    const auto* const after = reinterpret_cast<const float*>(plain.weights[p].data());
    for (size_t i = 0; i < plain.weights[p].size() / 4; ++i) {
      change.push_back(static_cast<double>(after[i]) -
                       static_cast<double>(test::made_up(p, static_cast<int64_t>(i), 1)));
    }
    EXPECT_NEAR(watched_rank.stats[0].parameters[p].update_rms, rms(change), 1e-6 * rms(change));
  }
}

TEST(ParameterStats, TellParametersThatSitOutFromThoseWithoutUpdates) {
  test::Training t = watched(test::two_parameters(2, Algorithm::kMuon));
  t.present = [](int32_t, size_t p, int) { return p != 1; };
  t.gradient = [](int32_t, size_t, int64_t, int) { return 0.0F; };
  const auto ranks = test::train(t);
  ASSERT_THAT(test::errors(ranks), Each(""));
  const std::vector<ParameterStats>& stats = ranks[0].stats.back().parameters;
  EXPECT_NEAR(stats[0].orthogonality_error, 1, 1e-7) << "a zero matrix has no direction";
  EXPECT_GT(stats[0].update_rms, 0) << "decay";
  EXPECT_EQ(stats[1].orthogonality_error, 0);
  EXPECT_EQ(stats[1].update_rms, 0);
  EXPECT_GT(stats[1].weight_rms, 0);
}

}  // namespace
}  // namespace muster
