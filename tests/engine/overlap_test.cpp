// Steps that begin while gradients still come: the bits of those that do not, in any order, and nothing goes on as if
// it were whole where a rank refuses, lacks gradients or is gone.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"
#include "muster/optimizer.h"
#include "support/overlapped.h"

namespace muster {
namespace {

using test::backward;
using test::chain;
using test::errors;
using test::without_overlap;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

class OverlapExact : public testing::TestWithParam<uint64_t> {};

TEST_P(OverlapExact, GivesTheBitsOfWholeSteps) {
  constexpr uint64_t kEach = 100;
  int planned = 0;
  int64_t early = 0;
  for (uint64_t seed = GetParam() * kEach; seed < (GetParam() + 1) * kEach; ++seed) {
    const test::RandomCase c = test::random_case(seed);
    if (c.problem.ranks > 10) continue;
    const test::Training t = test::random_overlap(seed, c);
    const std::vector<test::RankMemory> ranks = test::train(t);
    ++planned;
    for (const test::RankMemory& rank : ranks) {
      for (const StepStats& stats : rank.stats) early += ranks.size() > 1 ? stats.early_waves : 0;
    }
    const test::RankMemory one = test::train(test::on_one_rank(without_overlap(t)))[0];
    ASSERT_EQ(test::difference(c.problem, ranks, one), "") << "seed " << seed;
  }
  EXPECT_GT(planned, 80);
  EXPECT_GT(early, 100);  // on several ranks
}

INSTANTIATE_TEST_SUITE_P(Random, OverlapExact, testing::Range(uint64_t{0}, uint64_t{6}));

TEST(Overlap, StartsAllWavesButTheLastBeforeStep) {
  const test::Training t = chain(1);
  const test::RankMemory one = test::train(t)[0];
  ASSERT_EQ(one.error, "");
  for (const StepStats& stats : one.stats) EXPECT_EQ(stats.early_waves, 3);
  EXPECT_EQ(test::difference(t.problem, {one}, test::train(without_overlap(t))[0]), "");
}

TEST(Overlap, CutsWavesInTheGivenOrder) {
  const test::Training t = chain(2);
  const Plan plan = make_plan(t.problem, t.options.plan);
  EXPECT_EQ(plan.waves.size(), 4);
  EXPECT_TRUE(std::is_sorted(plan.wave.rbegin(), plan.wave.rend())) << testing::PrintToString(plan.wave);
  PlanOptions options;
  options.order = {0, 0};
  EXPECT_THAT([&] { make_plan(t.problem, options); },
              testing::ThrowsMessage<InvalidArgument>("order: parameter 0: expected each of 0 to 6 once"));
  options.order = {0};
  options.strategy = Strategy::kChunked;
  EXPECT_THAT([&] { make_plan(t.problem, options); },
              testing::ThrowsMessage<InvalidArgument>("order: strategy chunked fixes its own"));
}

// No rank has what the first wave needs until another is in step(): nobody waits in ready().
TEST(Overlap, RanksThatGoDifferentWaysDoNotWaitForEachOther) {
  test::Training t = chain(3);
  std::atomic<int> through = 0;
  t.arrival = [&through, order = t.options.plan.order](int32_t rank, int) {
    std::vector<int32_t> mine = order;
    if (rank == 1) std::reverse(mine.begin(), mine.end());
    if (rank == 2) mine.clear();
    ++through;
    return mine;
  };
  const std::vector<test::RankMemory> ranks = test::train(t);
  EXPECT_EQ(test::difference(t.problem, ranks, test::train(test::on_one_rank(without_overlap(t)))[0]), "");
  EXPECT_EQ(through, 9);
  // Rank 2 had nothing before step(): no wave can have begun without it.
  for (const StepStats& stats : ranks[2].stats) EXPECT_EQ(stats.early_waves, 0);
}

TEST(Overlap, TraceAndTimesTellWhatBeganEarly) {
  test::Training t = chain(1);
  t.steps = 1;
  t.after = [](Optimizer& optimizer) {
    std::vector<float> gradient(120, 1.0F);
    StepOptions options;
    options.trace = true;
    const auto begun = std::chrono::steady_clock::now();
    optimizer.begin_step(options);
    for (const int32_t p : backward(7)) optimizer.ready(p, gradient.data());
    const auto called = std::chrono::steady_clock::now();
    constexpr std::chrono::milliseconds kBetween(20);
    std::this_thread::sleep_for(kBetween);
    const StepStats stats = optimizer.step(std::vector<void*>(7, gradient.data()), options);
    const auto all = std::chrono::steady_clock::now() - begun;
    EXPECT_LT(std::chrono::nanoseconds(stats.total_ns), all - kBetween);  // without the time between the calls
    std::vector<int32_t> early;
    for (const TraceEvent& event : optimizer.trace()) {
      const bool before = std::chrono::nanoseconds(event.end_ns) < called.time_since_epoch();
      if (before && event.name.starts_with("orthogonalize")) early.push_back(event.wave);
    }
    EXPECT_THAT(early, testing::ElementsAre(0, 1));  // the next waits for the last one to set out
  };
  EXPECT_THAT(errors(test::train(t)), Each(""));
}

TEST(Overlap, RefusesWhatNeedsAllGradientsFirst) {
  const auto said = [](const StepOptions& options) {
    test::Training t = chain(2);
    t.arrival = nullptr;
    t.step_options = [=](int) { return options; };
    return errors(test::train(t));
  };
  StepOptions options;
  options.max_grad_norm = 1;
  EXPECT_THAT(said(options), Each(HasSubstr("overlap: not with clipping: it needs the norm of all gradients")));
  options = {};
  options.grad_norm = true;
  EXPECT_THAT(said(options), Each(HasSubstr("overlap: not with norms")));
  options = {};
  options.grad_scale = 0.5;
  EXPECT_THAT(said(options), Each(HasSubstr("overlap: not with a scale of the gradients")));
  for (const NonFinite policy : {NonFinite::kError, NonFinite::kSkipStep, NonFinite::kZero}) {
    options = {};
    options.non_finite = policy;
    EXPECT_THAT(said(options), Each(HasSubstr("overlap: not with a policy for non-finite gradients")));
  }
  test::Training t = chain(2);
  t.options.plan.order.clear();
  t.options.plan.waves = 0;
  t.options.plan.strategy = Strategy::kMegabatch;
  EXPECT_THAT(errors(test::train(t)), Each(HasSubstr("overlap: strategy megabatch fixes its own waves")));
  t = chain(2);
  t.after = [](Optimizer& optimizer) {
    const std::vector<void*> none(7);
    EXPECT_THROW(optimizer.grad_norm(none), InvalidArgument);
    EXPECT_THROW(optimizer.ready(0, nullptr), InvalidArgument);
    optimizer.begin_step();
    EXPECT_THROW(optimizer.begin_step(), InvalidArgument);
    EXPECT_THROW(optimizer.save("never"), InvalidArgument);
    EXPECT_THROW(optimizer.export_state(":steps"), InvalidArgument);
    EXPECT_THROW(optimizer.ready(7, nullptr), InvalidArgument);
    optimizer.step(none);
  };
  EXPECT_THAT(errors(test::train(t)), Each(""));
}

// What one rank refuses before a wave has begun is refused by all, and they go on.
TEST(Overlap, GoesOnAfterAStepThatWasRefusedBeforeItChangedAnything) {
  test::Training t = chain(3);
  t.steps = 1;
  std::atomic<int> next = 0;
  t.after = [&](Optimizer& optimizer) {
    const int number = next++;
    std::vector<float> gradient(120, 1.0F);
    const std::vector<void*> pointers(7, gradient.data());
    optimizer.begin_step();
    if (number == 0) optimizer.group(0).lr = 0.5;
    EXPECT_THROW(optimizer.step(pointers), InvalidArgument);
    optimizer.group(0).lr = 0.5;
    EXPECT_EQ(optimizer.step(pointers).step, 2);
  };
  EXPECT_THAT(errors(test::train(t)), Each(""));
}

// And after that weights are in between, everywhere.
TEST(Overlap, BreaksOffOnAllRanksWhereOneRefusesLate) {
  const auto said = [](const std::function<void(Optimizer&, std::vector<void*>&)>& spoil) {
    test::Training t = chain(1);
    t.steps = 1;
    std::string error;
    t.after = [&](Optimizer& optimizer) {
      std::vector<float> gradient(120, 1.0F);
      std::vector<void*> pointers(7, gradient.data());
      optimizer.begin_step();
      for (const int32_t p : backward(7)) optimizer.ready(p, gradient.data());
      spoil(optimizer, pointers);
      try {
        optimizer.step(pointers);
      } catch (const InvalidArgument& caught) {
        error = caught.what();
      }
      EXPECT_THROW(optimizer.step(pointers), CommError);
      EXPECT_THROW(optimizer.save("never"), CommError);
    };
    EXPECT_THAT(errors(test::train(t)), Each(""));
    return error;
  };
  EXPECT_THAT(said([](Optimizer& optimizer, auto&) { optimizer.group(0).lr = 0.5; }),
              AllOf(HasSubstr("step 2 broke off"), HasSubstr("group 0: its hyperparameters have changed")));
  EXPECT_THAT(said([](Optimizer&, auto& pointers) { pointers[3] = nullptr; }),
              HasSubstr("parameter 'w3': its gradient was ready, and is gone"));
  EXPECT_THAT(said([](Optimizer&, auto& pointers) { pointers.pop_back(); }), HasSubstr("6 gradients, expected 7"));
  EXPECT_THAT(said([](Optimizer& optimizer, auto& pointers) {
                EXPECT_THROW(optimizer.ready(2, pointers[2]), InvalidArgument);
              }),
              HasSubstr("parameter 'w2': its gradient is ready twice in one step"));
}

// Replicas of which one lacks a gradient that the others have used.
TEST(Overlap, BreaksOffWhereReplicasDisagree) {
  test::Training t = chain(2);
  test::replicate(t.problem);
  t.present = [](int32_t rank, size_t p, int step) { return step == 0 || rank == 0 || p != 2; };
  const std::vector<std::string> said = errors(test::train(t));
  EXPECT_THAT(said, Each(HasSubstr("step 2: parameter 'w2': some replicas have a gradient and some have none")));
}

TEST(Overlap, RefusesToGoOnAfterAPeerIsGone) {
  for (const size_t before : {0, 1, 4, 7}) test::expect_refusals_after_rank_1_left(before);
}

}  // namespace
}  // namespace muster
