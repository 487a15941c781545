// Steps that begin while gradients still come, on a device: the bits of those that do not, and nothing goes on as if it
// were whole where a rank refuses, lacks gradients or is gone.
#include <atomic>
#include <limits>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"
#include "on_device.h"
#include "support/overlapped.h"

namespace muster {
namespace {

using test::backward;
using test::errors;
using test::without_overlap;
using testing::Each;
using testing::HasSubstr;
using OverlapOnDevice = test::OnDevice;

test::Training on_device(test::Training t) {
  t.options.device = test::gpu();
  t.options.plan.cost = test::gpu_table();
  test::over_streams(t);
  return t;
}
test::Training chain(int32_t ranks) { return on_device(test::chain(ranks)); }

class OverlapExactOnDevice : public test::OnDevice, public testing::WithParamInterface<uint64_t> {};

TEST_P(OverlapExactOnDevice, GivesTheBitsOfWholeSteps) {
  constexpr int kProblems = 20;
  int planned = 0;
  int64_t early = 0;  // on several ranks
  int64_t early_alone = 0;
  for (uint64_t seed = GetParam() * 1000; planned < kProblems; ++seed) {
    const test::RandomCase c = test::random_case(seed);
    if (c.problem.ranks > 6) continue;
    ++planned;
    test::Training t = on_device(test::random_overlap(seed, c));
    t.steps = 4;
    const std::vector<test::RankMemory> ranks = test::train(t);
    const test::RankMemory one = test::train(test::on_one_rank(without_overlap(t)))[0];
    test::Training lonely = test::on_one_rank(t);
    lonely.options.plan = t.options.plan;
    const test::RankMemory alone = test::train(lonely)[0];
    for (const test::RankMemory& rank : ranks) {
      for (const StepStats& stats : rank.stats) early += ranks.size() > 1 ? stats.early_waves : 0;
    }
    for (const StepStats& stats : alone.stats) early_alone += stats.early_waves;
    ASSERT_EQ(test::difference(c.problem, ranks, one), "") << "seed " << seed;
    ASSERT_EQ(test::difference(c.problem, alone, one), "") << "seed " << seed;
  }
  EXPECT_GT(early_alone, 20);
  EXPECT_GT(early, test::kStreamed ? 100 : -1);
}

INSTANTIATE_TEST_SUITE_P(Random, OverlapExactOnDevice, testing::Range(uint64_t{0}, uint64_t{5}));

TEST_F(OverlapOnDevice, StartsAllWavesButTheLastBeforeStep) {
  test::Training t = on_device(test::mixed_training(1));
  t.options.overlap = true;
  t.options.plan.waves = 3;
  t.options.plan.order = backward(t.problem.parameters.size());
  t.arrival = [order = t.options.plan.order](int32_t, int) { return order; };
  t.steps = 6;
  const test::RankMemory one = test::train(t)[0];
  ASSERT_EQ(one.error, "");
  for (const StepStats& stats : one.stats) EXPECT_EQ(stats.early_waves, 2);
  EXPECT_EQ(test::difference(t.problem, {one}, test::train(without_overlap(t))[0]), "");
}

// No rank has what the first wave needs until another is in step(): nobody waits in ready().
TEST_F(OverlapOnDevice, RanksThatGoDifferentWaysDoNotWaitForEachOther) {
  test::Training t = chain(3);
  t.arrival = [order = t.options.plan.order](int32_t rank, int) {
    std::vector<int32_t> mine = order;
    if (rank == 1) std::reverse(mine.begin(), mine.end());
    if (rank == 2) mine.clear();
    return mine;
  };
  const std::vector<test::RankMemory> ranks = test::train(t);
  EXPECT_EQ(test::difference(t.problem, ranks, test::train(test::on_one_rank(without_overlap(t)))[0]), "");
  for (const StepStats& stats : ranks[0].stats) EXPECT_EQ(stats.early_waves, test::kStreamed ? 3 : 0);
  for (const StepStats& stats : ranks[2].stats) EXPECT_EQ(stats.early_waves, 0);
}

// Messages there would make ready() wait.
TEST_F(OverlapOnDevice, ThroughHostMemoryNothingBeginsBeforeStep) {
  test::Training t = chain(3);
  t.tamper = nullptr;
  const std::vector<test::RankMemory> ranks = test::train(t);
  EXPECT_EQ(test::difference(t.problem, ranks, test::train(test::on_one_rank(without_overlap(t)))[0]), "");
  for (const StepStats& stats : ranks[0].stats) EXPECT_EQ(stats.early_waves, 0);
}

// A rank's memory for a step of its own.
struct Memory {
  explicit Memory(const Problem& problem) {
    for (size_t p = 0; p < problem.parameters.size(); ++p) {
      std::vector<std::byte> values(kBytes);
      for (size_t i = 0; i < kElements; ++i) {
        test::store(Dtype::kF32, test::made_up(p, static_cast<int64_t>(i), 1), values.data() + i * sizeof(float));
      }
      good.push_back(copies.upload(values));
      weights.push_back({copies.upload(values)});
      std::fill(values.begin(), values.end(), std::byte{0xff});  // NaN
      late.push_back(copies.upload(values));
    }
  }
  std::vector<std::byte> read(const void* data) {
    std::vector<std::byte> out(kBytes);
    copies.download(data, out);
    return out;
  }

  static constexpr size_t kElements = 120;
  static constexpr size_t kBytes = kElements * sizeof(float);
  test::DeviceCopies copies{test::gpu()};
  std::vector<ParameterMemory> weights;
  std::vector<void*> good;
  std::vector<void*> late;  // gradients that are there when a stream says so
};

// Gradients that are still to be written when ready() is called, each on a stream of its own, weights that are read as
// soon as step() returns, and gradients that are overwritten then.
TEST_F(OverlapOnDevice, KeepsTheOrderOfTheCallersStreams) {
  const test::Training t = chain(1);
  Memory expected(t.problem);
  Memory mine(t.problem);
  Memory read(t.problem);
  test::CallerStream streams[2];
  const auto communicators = make_local_communicators(1);
  Optimizer whole(t.problem, without_overlap(t).options, *communicators[0], expected.weights);
  Optimizer optimizer(t.problem, t.options, *communicators[0], mine.weights);
  for (int step = 0; step < 3; ++step) {
    whole.step(expected.good);
    whole.synchronize();
    optimizer.begin_step();
    for (const int32_t p : backward(7)) {
      test::CallerStream& stream = streams[p % 2];
      stream.copy(mine.late[p], mine.good[p], Memory::kBytes);
      optimizer.follow(stream.handle());
      optimizer.ready(p, mine.late[p]);
    }
    optimizer.follow(streams[1].handle());
    EXPECT_EQ(optimizer.step(mine.late).early_waves, 3);
    for (int p = 0; p < 7; ++p) {
      streams[1].fill(mine.late[p], 0xff, Memory::kBytes);
      streams[1].copy(read.late[p], mine.weights[p].weight, Memory::kBytes);
    }
    streams[1].wait();
    for (int p = 0; p < 7; ++p) EXPECT_EQ(read.read(read.late[p]), expected.read(expected.weights[p].weight)) << p;
  }
  optimizer.synchronize();
}

TEST_F(OverlapOnDevice, ATraceHasAllWaves) {
  test::Training t = chain(1);
  t.steps = 1;
  t.after = [](Optimizer& optimizer) {
    StepOptions options;
    options.trace = true;
    const std::vector<void*> none(7);
    const int64_t begin = std::chrono::steady_clock::now().time_since_epoch().count();
    optimizer.begin_step(options);
    optimizer.step(none, options);
    std::set<int32_t> waves;
    for (const TraceEvent& event : optimizer.trace()) {
      EXPECT_LE(event.begin_ns, event.end_ns);
      EXPECT_GT(event.begin_ns, begin - 1'000'000'000);
      if (event.name.starts_with("orthogonalize")) waves.insert(event.wave);
    }
    EXPECT_THAT(waves, testing::ElementsAre(0, 1, 2, 3));
  };
  EXPECT_THAT(errors(test::train(t)), Each(""));
}

TEST_F(OverlapOnDevice, RefusesWhatNeedsAllGradientsFirst) {
  test::Training t = chain(1);
  t.after = [](Optimizer& optimizer) {
    const std::vector<void*> none(7);
    StepOptions options;
    options.max_grad_norm = 1;
    const int64_t steps = optimizer.steps();
    EXPECT_THROW(optimizer.begin_step(options), InvalidArgument);
    EXPECT_THAT([&] { optimizer.step(none, options); },
                testing::ThrowsMessage<InvalidArgument>(HasSubstr("overlap: not with clipping")));
    EXPECT_THROW(optimizer.grad_norm(none), InvalidArgument);
    EXPECT_THROW(optimizer.ready(0, nullptr), InvalidArgument);
    optimizer.group(0).lr = std::numeric_limits<double>::quiet_NaN();
    EXPECT_THAT([&] { optimizer.step(none); }, testing::ThrowsMessage<InvalidArgument>(HasSubstr("group 0: lr nan")));
    optimizer.group(0).lr = 0.02;
    EXPECT_EQ(optimizer.steps(), steps);
    optimizer.begin_step();
    EXPECT_THROW(optimizer.begin_step(), InvalidArgument);
    EXPECT_THROW(optimizer.save("never"), InvalidArgument);
    optimizer.step(none);
  };
  EXPECT_THAT(errors(test::train(t)), Each(""));
}

// What one rank refuses before a wave has begun changes nothing anywhere, and all go on; the others hear of it later.
TEST_F(OverlapOnDevice, GoesOnAfterAStepThatWasRefusedBeforeItChangedAnything) {
  for (const double lr : {0.5, std::numeric_limits<double>::quiet_NaN()}) {
    test::Training t = chain(3);
    t.steps = 1;
    std::atomic<int> next = 0;
    t.after = [&](Optimizer& optimizer) {
      const bool refuses = next++ == 0;
      const std::vector<void*> none(7);
      const Group good = optimizer.group(0);
      if (refuses && lr != 0.5) optimizer.group(0).lr = lr;
      optimizer.begin_step();
      if (refuses) optimizer.group(0).lr = lr;
      if (refuses) {
        EXPECT_THAT([&] { optimizer.step(none); },
                    testing::ThrowsMessage<InvalidArgument>(HasSubstr("step 2: group 0")));
        optimizer.synchronize();
      } else {
        optimizer.step(none);
        EXPECT_THAT([&] { optimizer.synchronize(); }, testing::ThrowsMessage<InvalidArgument>(HasSubstr("refused it")));
      }
      optimizer.group(0) = good;
      EXPECT_EQ(optimizer.step(none).step, 3);
      EXPECT_NO_THROW(optimizer.synchronize());
    };
    EXPECT_THAT(errors(test::train(t)), Each(""));
  }
}

// And after that weights are in between, everywhere: the one that refuses says so at once, the others in their next
// call or the one after.
TEST_F(OverlapOnDevice, BreaksOffOnAllRanksWhereOneRefusesLate) {
  for (const int32_t ranks : {1, 3}) {
    if (ranks > 1 && !test::kStreamed) continue;  // nothing begins early
    for (const bool synchronize : {false, true}) {
      test::Training t = chain(ranks);
      t.steps = 1;
      std::atomic<int> next = 0;
      t.after = [&](Optimizer& optimizer) {
        const bool refuses = next++ == 0;
        test::DeviceCopies copies(test::gpu());
        std::vector<std::byte> ones(Memory::kBytes, std::byte{1});
        const std::vector<void*> gradients(7, copies.upload(ones));
        optimizer.begin_step();
        for (const int32_t p : backward(7)) optimizer.ready(p, gradients[p]);
        if (refuses) optimizer.group(0).lr = 0.5;
        if (refuses) {
          EXPECT_THAT([&] { optimizer.step(gradients); },
                      testing::ThrowsMessage<InvalidArgument>(
                          HasSubstr("step 2 broke off: step 2: group 0: its hyperparameters have changed")));
        } else {
          EXPECT_EQ(optimizer.step(gradients).early_waves, 3);
          if (synchronize) {
            EXPECT_THAT([&] { optimizer.synchronize(); },
                        testing::ThrowsMessage<InvalidArgument>(HasSubstr("step 2 broke off: step 2: rank ")));
          }
        }
        EXPECT_THAT([&] { optimizer.begin_step(); },
                    testing::ThrowsMessage<CommError>(HasSubstr("step 2 broke off: step 2: ")));
        EXPECT_THROW(optimizer.ready(0, gradients[0]), CommError);
        EXPECT_THROW(optimizer.step(gradients), CommError);
        EXPECT_THROW(optimizer.save("never"), CommError);
        EXPECT_THROW(optimizer.export_state(":steps"), CommError);
      };
      EXPECT_THAT(errors(test::train(t)), Each(""));
    }
  }
}

// After a state was loaded the same ranks go on, over the same communicator.
TEST_F(OverlapOnDevice, GoesOnWithAnImportedStateAfterItBrokeOff) {
  test::Training t = chain(test::kStreamed ? 2 : 1);
  t.steps = 2;
  std::atomic<int> next = 0;
  t.after = [&](Optimizer& optimizer) {
    const bool refuses = next++ == 0;
    std::vector<StateTensor> state;
    for (const StateInfo& info : optimizer.state()) state.push_back(optimizer.export_state(info.name));
    test::DeviceCopies copies(test::gpu());
    std::vector<std::byte> ones(Memory::kBytes, std::byte{1});
    const std::vector<void*> gradients(7, copies.upload(ones));
    const Group good = optimizer.group(0);
    const auto step = [&] {
      optimizer.begin_step();
      for (const int32_t p : backward(7)) optimizer.ready(p, gradients[p]);
    };
    step();
    if (refuses) {
      optimizer.group(0).lr = 0.5;
      EXPECT_THROW(optimizer.step(gradients), InvalidArgument);
      optimizer.group(0) = good;
    } else {
      optimizer.step(gradients);
    }
    optimizer.import_state(state);
    step();
    EXPECT_EQ(optimizer.step(gradients).step, 3);
    EXPECT_NO_THROW(optimizer.synchronize());
  };
  EXPECT_THAT(errors(test::train(t)), Each(""));
}

// Replicas of which one lacks a gradient that the others have used.
TEST_F(OverlapOnDevice, BreaksOffWhereReplicasDisagree) {
  test::Training t = chain(2);
  test::replicate(t.problem);
  t.present = [](int32_t rank, size_t p, int step) { return step == 0 || rank == 0 || p != 2; };
  EXPECT_THAT(errors(test::train(t)),
              Each(HasSubstr("step 2: parameter 'w2': some replicas have a gradient and some have none")));
}

// Each wave's ballots replace those of the wave before: a difference in an early one must not be forgotten.
TEST_F(OverlapOnDevice, BreaksOffWhereReplicasHaveDifferentGradients) {
  for (size_t which = 0; which < 6; ++which) {
    test::Training t = chain(2);
    test::replicate(t.problem);
    t.steps = 1;
    t.gradient = [which](int32_t rank, size_t p, int64_t element, int) {
      return test::made_up(p, element, rank == 1 && p == which ? 1000 : 1);
    };
    const std::string name = which == 0 ? "w" : "w" + std::to_string(which);
    const std::vector<test::RankMemory> ranks = test::train(t);
    EXPECT_THAT(errors(ranks), Each(HasSubstr("'" + name + "': its replicas have different gradients")));
    EXPECT_THAT(ranks, Each(testing::AllOf(testing::Field(&test::RankMemory::code, ErrorCode::kReplicaGradientsDiffer),
                                           testing::Field(&test::RankMemory::about, name))));
  }
}

TEST_F(OverlapOnDevice, RefusesToGoOnAfterAPeerIsGone) {
  for (const size_t before : {0, 4, 7}) test::expect_refusals_after_rank_1_left(before);
}

}  // namespace
}  // namespace muster
