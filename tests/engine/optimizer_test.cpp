#include "muster/optimizer.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/step_scale.h"
#include "muster/error.h"
#include "reference/reference.h"
#include "support/problems.h"
#include "support/training.h"

namespace muster {
namespace {

using test::errors;
using test::replicate;
using test::training;
using test::two_parameters;
using testing::Each;
using testing::HasSubstr;

TEST(Optimizer, DoesWhatTheReferenceDoes) {
  constexpr int64_t kRows = 24;
  constexpr int64_t kColumns = 40;
  for (const Algorithm algorithm : {Algorithm::kMuon, Algorithm::kNorMuon}) {
    test::Training t = training(test::one_parameter({kRows, kColumns}, 1, algorithm));
    t.problem.wire = Dtype::kF32;
    t.options.groups[0].weight_decay = 0.1;
    t.options.groups[0].decay = Decay::kCautious;

    reference::MuonOptions options;
    options.wire = reference::Wire::kF32;
    for (const Coefficients::Step& step : t.options.groups[0].coefficients.steps) {
      options.newton_schulz.steps.push_back({step.a, step.b, step.c});
    }
    options.newton_schulz.safety = t.options.groups[0].coefficients.safety;
    options.normuon = algorithm == Algorithm::kNorMuon;
    options.norm.axis = reference::Axis::kColumns;
    options.apply = {0.02, kernels::step_scale(StepScale::kJordan, kRows, kColumns), 0.1, reference::Decay::kCautious};
    reference::MuonState state;
    state.momentum.assign(kRows * kColumns, 0);
    state.variance.assign(kColumns, 0);
    reference::Matrix weight{kRows, kColumns, {}};
    for (int64_t i = 0; i < kRows * kColumns; ++i) weight.data.push_back(static_cast<double>(test::made_up(0, i, 1)));
    for (int step = 0; step < t.steps; ++step) {
      reference::Matrix grad{kRows, kColumns, {}};
      for (int64_t i = 0; i < kRows * kColumns; ++i) {
        grad.data.push_back(static_cast<double>(t.gradient(0, 0, i, step)));
      }
      reference::muon_step(options, grad, state, weight);
    }

    const test::RankMemory rank = test::train(t)[0];
    ASSERT_EQ(rank.error, "");
    const auto* const weights = reinterpret_cast<const float*>(rank.weights[0].data());
    // Three steps of 0.02 with entries up to about 1: f32 products of length 40, amplified some 50 times by five steps
    // of a polynomial whose first slope is 8, stay below 1e-5.
    for (size_t i = 0; i < weight.data.size(); ++i) ASSERT_NEAR(weights[i], weight.data[i], 1e-5) << "element " << i;
  }
}

TEST(Optimizer, GroupsThatSitOutMoveNoBytes) {
  test::Training t = training(two_parameters(2, Algorithm::kNorMuon));
  t.options.groups.resize(2);
  t.options.groups[1].every = 2;
  t.group = [](size_t p) { return static_cast<int32_t>(p); };
  t.steps = 4;
  const std::vector<test::RankMemory> ranks = test::train(t);
  ASSERT_THAT(errors(ranks), Each(""));
  int64_t sent[4] = {};
  for (const test::RankMemory& rank : ranks) {
    for (int step = 0; step < 4; ++step) sent[step] += rank.stats[step].bytes_sent;
  }
  EXPECT_EQ(2 * sent[0], sent[1]);
  EXPECT_EQ(sent[0], sent[2]);
  EXPECT_EQ(sent[1], sent[3]);

  // And a group alone that sits out leaves the wire silent.
  t.problem.parameters.resize(1);
  t.options.groups[0].every = 3;
  for (const test::RankMemory& rank : test::train(t)) {
    EXPECT_EQ(rank.error, "");
    EXPECT_EQ(rank.stats[0].messages_sent + rank.stats[1].messages_sent + rank.stats[3].messages_sent, 0);
  }
}

TEST(Optimizer, ParametersWithoutGradientsSitOut) {
  test::Training t = training(two_parameters(2));
  t.present = [](int32_t, size_t p, int) { return p == 0; };
  for (const test::RankMemory& rank : test::train(t)) {
    ASSERT_EQ(rank.error, "");
    for (size_t i = 0; i < rank.elements[1].size(); ++i) {
      EXPECT_EQ(reinterpret_cast<const float*>(rank.weights[1].data())[i], test::made_up(1, rank.elements[1][i], 1));
    }
    for (const StateTensor& state : rank.state) {
      if (state.name != "v:updates") continue;
      EXPECT_THAT(state.data, Each(std::byte{0}));
    }
  }
}

TEST(Optimizer, ReplicasThatDisagreeAboutAGradientAreAnError) {
  test::Training t = training(two_parameters(3));
  replicate(t.problem);
  t.present = [](int32_t rank, size_t p, int step) { return step == 0 || p == 0 || rank == 1; };
  EXPECT_THAT(errors(test::train(t)), Each(HasSubstr("step 2: parameter 'v': some replicas have a gradient")));
  // In a step that the group sits out, nobody looks.
  test::Training sits_out = t;
  sits_out.options.groups.resize(2);
  sits_out.options.groups[1].every = 4;
  sits_out.group = [](size_t p) { return static_cast<int32_t>(p); };
  EXPECT_THAT(errors(test::train(sits_out)), Each(""));
  // With grad_sync they contribute nothing.
  t.problem.grad_sync = true;
  EXPECT_EQ(test::difference(t.problem, test::train(t), test::train(test::on_one_rank(t))[0]), "");
}

TEST(Optimizer, PoliciesForGradientsThatAreNotFinite) {
  for (const bool infinite : {false, true}) {
    test::Training t = training(two_parameters(2));
    const float bad = infinite ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
    const auto spoilt = [](size_t p, int64_t element, int step) { return p == 1 && element == 77 && step == 1; };
    const auto good = t.gradient;
    t.gradient = [=](int32_t r, size_t p, int64_t element, int step) {
      return spoilt(p, element, step) ? bad : good(r, p, element, step);
    };
    const auto with = [&](NonFinite policy) {
      t.step_options = [policy](int) {
        StepOptions options;
        options.non_finite = policy;
        options.parameter_stats = true;
        return options;
      };
      return test::train(t);
    };
    EXPECT_THAT(errors(with(NonFinite::kError)),
                Each("step 2: parameter 'v': its gradient is not finite on 1 of the ranks"));

    const auto skipped = with(NonFinite::kSkipStep);
    EXPECT_FALSE(skipped[0].stats[0].skipped);
    EXPECT_TRUE(skipped[0].stats[1].skipped);
    EXPECT_FALSE(skipped[0].stats[2].skipped);
    for (const StepStats& stats : skipped[0].stats) EXPECT_EQ(stats.parameters.size(), 2);
    test::Training two = t;
    two.steps = 2;
    two.step_options = nullptr;
    two.gradient = [good](int32_t r, size_t p, int64_t element, int step) { return good(r, p, element, 2 * step); };
    EXPECT_EQ(skipped[0].weights, test::train(two)[0].weights);

    const auto zeroed = with(NonFinite::kZero);
    test::Training zero = t;
    zero.step_options = nullptr;
    zero.gradient = [=](int32_t r, size_t p, int64_t element, int step) {
      return spoilt(p, element, step) ? 0.0F : good(r, p, element, step);
    };
    EXPECT_EQ(test::difference(t.problem, zeroed, test::train(test::on_one_rank(zero))[0]), "");

    const auto ignored = with(NonFinite::kIgnore);
    EXPECT_THAT(errors(ignored), Each(""));
    const auto* const weights = reinterpret_cast<const float*>(ignored[1].weights[1].data());
    EXPECT_FALSE(std::isfinite(weights[77 - 60]));
  }
}

TEST(Optimizer, ClipsByTheNormOfAllGradients) {
  test::Training t = training(two_parameters(3));
  double norm = 0;
  for (size_t p = 0; p < 2; ++p) {
    for (int64_t i = 0; i < 120; ++i) norm += std::pow(static_cast<double>(t.gradient(0, p, i, 0)), 2);
  }
  norm = std::sqrt(norm);
  t.steps = 1;
  t.step_options = [](int) {
    StepOptions options;
    options.max_grad_norm = 0.75;
    return options;
  };
  t.before = [](Optimizer& optimizer) {
    std::vector<float> none(120);
    std::vector<void*> pointers{none.data(), nullptr};
    EXPECT_EQ(optimizer.grad_norm(pointers), 0);
  };
  const auto clipped = test::train(t);
  ASSERT_THAT(errors(clipped), Each(""));
  EXPECT_NEAR(clipped[0].stats[0].grad_norm, norm, 1e-12 * norm);
  EXPECT_NEAR(clipped[0].stats[0].clip, 0.75 / norm, 1e-5);
  // The formula holds up to the norm itself.
  test::Training at_norm = t;
  at_norm.step_options = [norm](int) {
    StepOptions options;
    options.max_grad_norm = norm * (1 + 1e-12);
    return options;
  };
  EXPECT_NEAR(test::train(at_norm)[0].stats[0].clip, 1 - 1e-6 / norm, 1e-9);
  // A gradient scaled beforehand does the same, up to the rounding of that scaling.
  test::Training scaled = t;
  scaled.before = nullptr;
  scaled.step_options = [&](int) {
    StepOptions options;
    options.grad_scale = clipped[0].stats[0].clip;
    return options;
  };
  EXPECT_EQ(test::train(scaled)[0].weights, clipped[0].weights);
}

TEST(Optimizer, TheScaleOfAStepIsTheParametersOrTheBlocks) {
  Problem problem = test::one_parameter({16, 4}, 1, Algorithm::kMuon);
  problem.wire = Dtype::kF32;
  problem.parameters[0].matrices.rows = {{4, {}, {}}, {4, {}, {}}, {4, {}, {}}, {4, {}, {}}};
  const auto changed = [&] {
    test::Training t = training(problem);
    t.steps = 1;
    const test::RankMemory rank = test::train(t)[0];
    EXPECT_EQ(rank.error, "");
    return reinterpret_cast<const float*>(rank.weights[0].data())[0] - test::made_up(0, 0, 1);
  };
  const float block = changed();
  problem.parameters[0].scale_shape = ScaleShape::kParameter;
  EXPECT_NEAR(changed() / block, 2, 1e-4);  // sqrt(16 / 4)
  problem.parameters[0].output_dim = 1;
  EXPECT_NEAR(changed() / block, 1, 1e-4);
}

TEST(Optimizer, ReportsWhatAStepDid) {
  for (const bool sync : {false, true}) {
    test::Training t = training(two_parameters(2));
    if (sync) replicate(t.problem);
    t.problem.grad_sync = sync;  // gradients then travel twice, for their norm first
    t.step_options = [](int) {
      StepOptions options;
      options.trace = true;
      options.parameter_stats = true;
      return options;
    };
    std::atomic<int> exchanges = 0;
    t.after = [&](Optimizer& optimizer) {
      EXPECT_GT(optimizer.scratch_bytes(), 0);
      int64_t last = 0;
      for (const TraceEvent& event : optimizer.trace()) {
        EXPECT_LE(event.begin_ns, event.end_ns);
        exchanges += event.exchange ? 1 : 0;
        if (event.exchange) continue;
        EXPECT_GE(event.begin_ns, last) << event.name << ": stages do not overlap";
        last = event.end_ns;
      }
    };
    const auto ranks = test::train(t);
    ASSERT_THAT(errors(ranks), Each(""));
    EXPECT_GT(exchanges, 0);
    for (const test::RankMemory& rank : ranks) {
      const StepStats& stats = rank.stats.back();
      EXPECT_EQ(stats.step, 3);
      EXPECT_LE(std::accumulate(stats.stage_ns.begin(), stats.stage_ns.end(), int64_t{0}), stats.total_ns);
      EXPECT_GT(stats.kernels, 0);
      ASSERT_EQ(stats.parameters.size(), 2);
      double square = 0;
      for (int64_t i = 0; i < 120; ++i) square += std::pow(static_cast<double>(t.gradient(0, 1, i, 2)), 2);
      EXPECT_NEAR(stats.parameters[1].grad_norm, std::sqrt(square), 1e-9);
      // AdamW's third step moves every element by about lr.
      EXPECT_NEAR(stats.parameters[1].update_rms, 0.02, 0.015);
    }
  }
}

TEST(Optimizer, KeepsTheStatisticsOfTheLastStepUntilTheNext) {
  test::Training t = training(two_parameters(2));
  t.step_options = [](int) {
    StepOptions options;
    options.trace = true;
    return options;
  };
  t.after = [](Optimizer& optimizer) {
    std::vector<float> gradient(120, 1.0F);
    std::vector<void*> pointers{gradient.data(), gradient.data()};
    const auto is_kept = [&] {
      EXPECT_EQ(optimizer.last_step().step, 3);
      EXPECT_GT(optimizer.last_step().total_ns, 0);
      EXPECT_FALSE(optimizer.trace().empty());
    };
    EXPECT_GT(optimizer.grad_norm(pointers), 0);
    is_kept();
    EXPECT_THROW(optimizer.step(std::span(pointers).first(1)), InvalidArgument);
    is_kept();
  };
  EXPECT_THAT(errors(test::train(t)), Each(""));
}

TEST(Optimizer, FollowsAParameterThatMoves) {
  const auto communicators = make_local_communicators(1);
  const std::vector<float> start(12, 0.5F);
  std::vector<float> gradient(12);
  std::iota(gradient.begin(), gradient.end(), -3.0F);
  const std::vector<void*> gradients{gradient.data()};
  const Problem problem = test::one_parameter({3, 4}, 1);
  const auto make = [&](std::vector<float>& weights) {
    return Optimizer(problem, {}, *communicators[0], {{.weight = weights.data()}});
  };
  std::vector<float> left = start;
  std::vector<float> stayed = start;
  Optimizer moving = make(left);
  Optimizer staying = make(stayed);
  moving.step(gradients);
  staying.step(gradients);
  std::vector<float> arrived = left;
  moving.move(0, arrived.data());
  moving.step(gradients);
  staying.step(gradients);
  EXPECT_EQ(arrived, stayed);
  EXPECT_NE(arrived, left);
  EXPECT_THROW(moving.move(1, arrived.data()), InvalidArgument);
  EXPECT_THAT([&] { moving.move(0, nullptr); }, testing::ThrowsMessage<InvalidArgument>(HasSubstr("'w'")));
  moving.step(gradients);
  staying.step(gradients);
  EXPECT_EQ(arrived, stayed);
}

TEST(Optimizer, NamesWhatIsWrongWithImportedState) {
  test::Training t = training(two_parameters(2));
  std::atomic<int> next = 0;
  t.after = [&](Optimizer& optimizer) {
    const auto said = [&](StateTensor tensor) {
      try {
        optimizer.import_state({&tensor, 1});
      } catch (const InvalidArgument& error) {
        return std::string(error.what());
      }
      return std::string();
    };
    StateTensor momentum = optimizer.export_state("w:momentum");
    EXPECT_EQ(said(momentum), "");
    StateTensor wrong = momentum;
    wrong.name = "x:momentum";
    EXPECT_EQ(said(wrong), "rank 0: state \"x:momentum\": there is none of that name");
    wrong = momentum;
    wrong.shape = {10, 12};
    EXPECT_EQ(said(wrong), "rank 0: state \"w:momentum\": shape [10, 12], expected [12, 10]");
    wrong = momentum;
    wrong.data.pop_back();
    EXPECT_EQ(said(wrong), "rank 0: state \"w:momentum\": 479 bytes, expected 480");
    wrong = momentum;
    wrong.type = StateType::kBf16;
    EXPECT_EQ(said(wrong), "rank 0: state \"w:momentum\": stored in another type than here");
    StateTensor updates = optimizer.export_state("w:updates");
    for (const int64_t count : {int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
      std::memcpy(updates.data.data(), &count, sizeof count);
      EXPECT_EQ(said(updates), fmt::format("rank 0: state \"w:updates\": {}; expected 0 to 2^53", count));
    }
    StateTensor second = optimizer.export_state("v:second");
    const float negative = -0.5F;
    std::memcpy(second.data.data() + 4, &negative, sizeof negative);
    EXPECT_EQ(said(second), "rank 0: state \"v:second\": -0.5; expected no negative mean of squares");
    EXPECT_THROW(optimizer.export_state("w:first"), InvalidArgument);
    const std::vector<StateTensor> twice{momentum, momentum};
    EXPECT_THAT([&] { optimizer.import_state(twice); },
                testing::ThrowsMessage<InvalidArgument>("rank 0: state \"w:momentum\": given twice"));
    // One rank gives less than the other.
    const std::vector<StateTensor> two{momentum, optimizer.export_state("v:first")};
    const size_t count = next++ == 0 ? 1 : 2;
    EXPECT_THAT([&] { optimizer.import_state(std::span(two).first(count)); },
                testing::ThrowsMessage<InvalidArgument>(HasSubstr("ranks disagree")));
  };
  EXPECT_THAT(errors(test::train(t)), Each(""));
}

}  // namespace
}  // namespace muster
