// Steps that a rank refuses, or that ranks disagree on: on a device the others hear of it later, and training goes on.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"
#include "on_device.h"
#include "support/run_ranks.h"

namespace muster {
namespace {

using Refusals = test::OnDevice;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int32_t kRanks = 3;
constexpr int kBad = 1;  // which of the calls
constexpr int kCalls = 6;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// What a rank did: what each of its calls threw, and what it has in the end.
struct Told {
  std::vector<std::string> calls = std::vector<std::string>(kCalls);
  std::string synchronized;
  int64_t steps = 0;
  std::vector<std::vector<float>> weights;

  std::vector<std::string> thrown() const {
    std::vector<std::string> out;
    for (const std::string& text : calls) {
      if (!text.empty()) out.push_back(text);
    }
    return out;
  }
};

template <typename Work>
std::string said(Work work) {
  try {
    work();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return {};
}

// What a rank gives to a call.
struct Call {
  std::vector<void*> gradients;
  StepOptions options;
};
using Spoil = std::function<void(int32_t rank, Optimizer& optimizer, Call& call)>;

// Every rank makes the same calls, one of them spoilt by some; synchronizes after that one, or at the end only.
std::vector<Told> train(const Spoil& spoil, bool synchronize, const StepOptions& step_options = {}) {
  std::vector<Told> told(kRanks);
  const Problem problem = test::two_parameters(kRanks);
  test::run_ranks(kRanks,
                  [&](Communicator& comm) {
                    const int32_t rank = comm.rank();
                    Told& mine = told[rank];
                    test::Shards shards(problem, rank);
                    Optimizer optimizer(problem, test::gpu_options(), comm, shards.memory);
                    const Group good = optimizer.group(0);
                    for (int i = 0; i < kCalls; ++i) {
                      Call call{shards.gradients(static_cast<uint64_t>(i)), step_options};
                      if (i == kBad) spoil(rank, optimizer, call);
                      mine.calls[i] = said([&] { optimizer.step(call.gradients, call.options); });
                      optimizer.group(0) = good;
                      if (i == kBad && synchronize) mine.synchronized = said([&] { optimizer.synchronize(); });
                    }
                    optimizer.synchronize();
                    mine.steps = optimizer.steps();
                    mine.weights = shards.weights();
                  },
                  {std::chrono::seconds(20)});
  return told;
}

// Messages of a step are enqueued before its ballots are read: they must not depend on the number of the step.
TEST_F(Refusals, NameRanksThatHaveDoneAnotherNumberOfSteps) {
  Problem problem = test::two_parameters(kRanks);
  test::Training t = test::training(problem);
  t.options.device = test::gpu();
  t.options.plan.cost = test::gpu_table();
  t.steps = 4;
  EXPECT_THAT(test::refusals_after(t, {0, 0, 7}),
              testing::Each(HasSubstr("number of steps done: 0 on ranks 0, 1; 7 on rank 2")));
}

// A step in which nothing has a gradient is one that changes nothing, and counts.
const Spoil kNothing = [](int32_t, Optimizer&, Call& call) { call.gradients.assign(call.gradients.size(), nullptr); };

void expect_refused(const Spoil& spoil, const std::string& own, const StepOptions& options = {}) {
  const std::vector<Told> calm = train(kNothing, false, options);
  for (const bool synchronize : {false, true}) {
    const std::vector<Told> told = train(spoil, synchronize, options);
    for (int32_t r = 0; r < kRanks; ++r) {
      SCOPED_TRACE(testing::Message() << "rank " << r << ", synchronizes " << synchronize);
      EXPECT_THAT(calm[r].thrown(), IsEmpty());
      EXPECT_EQ(told[r].steps, kCalls);
      EXPECT_EQ(told[r].weights, calm[r].weights) << "nothing but the spoilt step is lost";
      if (r == 1) {
        EXPECT_THAT(told[r].calls[kBad], HasSubstr(own)) << "at once";
        EXPECT_THAT(told[r].thrown(), SizeIs(1));
        EXPECT_EQ(told[r].synchronized, "");
      } else if (synchronize) {
        EXPECT_THAT(told[r].thrown(), IsEmpty());
        EXPECT_EQ(told[r].synchronized, "step 2: rank 1 refused it");
      } else {
        EXPECT_THAT(told[r].thrown(), ElementsAre("step 2: rank 1 refused it"));
        EXPECT_EQ(told[r].calls[kCalls - 1], "") << "two steps later at most";
        EXPECT_EQ(told[r].calls[kBad + 3], "") << "two steps later at most";
      }
    }
  }
}

TEST_F(Refusals, ABadHyperparameterOnOneRank) {
  expect_refused(
      [](int32_t rank, Optimizer& optimizer, Call&) {
        if (rank == 1) optimizer.group(0).lr = kNan;
      },
      "step 2: group 0: lr nan: expected a finite number, at least 0");
}

TEST_F(Refusals, ABadMaximumOnOneRankOfSomeThatClip) {
  StepOptions options;
  options.max_grad_norm = 2;
  expect_refused(
      [](int32_t rank, Optimizer&, Call& call) {
        if (rank == 1) call.options.max_grad_norm = kNan;
      },
      "step 2: max_grad_norm nan: expected at least 0", options);
}

// What would give the step another shape, or none, on the rank that refuses it.
TEST_F(Refusals, CoefficientsAndSchedulesOnOneRank) {
  expect_refused(
      [](int32_t rank, Optimizer& optimizer, Call&) {
        if (rank == 1) optimizer.group(0).coefficients.steps.clear();
      },
      "step 2: group 0: coefficients");
  expect_refused(
      [](int32_t rank, Optimizer& optimizer, Call&) {
        if (rank == 1) optimizer.group(0).every = 0;
      },
      "step 2: group 0: every 0");
}

TEST_F(Refusals, LeaveGradientsAsTheyAre) {
  const Problem problem = test::two_parameters(kRanks);
  StepOptions options;
  options.non_finite = NonFinite::kZero;
  test::run_ranks(kRanks, [&](Communicator& comm) {
    test::Shards shards(problem, comm.rank());
    Optimizer optimizer(problem, test::gpu_options(), comm, shards.memory);
    const std::vector<void*> gradients = shards.spoilt(0, 0, 0, static_cast<float>(kNan));
    if (comm.rank() == 1) optimizer.group(0).lr = kNan;
    said([&] { optimizer.step(gradients, options); });
    said([&] { optimizer.synchronize(); });
    EXPECT_TRUE(std::isnan(shards.read(gradients[0], 0)[0]));
    optimizer.group(0).lr = 0.02;
    optimizer.step(gradients, options);
    optimizer.synchronize();
    EXPECT_EQ(shards.read(gradients[0], 0)[0], 0.0F);
  });
}

TEST_F(Refusals, AWrongNumberOfGradientsOnOneRank) {
  expect_refused(
      [](int32_t rank, Optimizer&, Call& call) {
        if (rank == 1) call.gradients.resize(1);
      },
      "step 2: 1 gradients, expected 2");
}

// Steps that wait hear of it at once, and of earlier ones too.
TEST_F(Refusals, StepsThatWaitHearOfItAtOnce) {
  StepOptions options;
  options.grad_norm = true;
  const Spoil spoil = [](int32_t rank, Optimizer& optimizer, Call&) {
    if (rank == 1) optimizer.group(0).momentum = 1;
  };
  const std::vector<Told> calm = train(kNothing, false, options);
  const std::vector<Told> told = train(spoil, false, options);
  for (int32_t r = 0; r < kRanks; ++r) {
    EXPECT_THAT(told[r].thrown(), SizeIs(1));
    EXPECT_THAT(told[r].calls[kBad], HasSubstr(r == 1 ? "momentum 1" : "step 2: rank 1 refused it"));
    EXPECT_EQ(told[r].weights, calm[r].weights);
    EXPECT_EQ(told[r].steps, kCalls);
  }
}

TEST_F(Refusals, HyperparametersThatDiffer) {
  const Spoil spoil = [](int32_t rank, Optimizer& optimizer, Call&) { optimizer.group(0).lr = rank == 2 ? 0.5 : 0.25; };
  const std::vector<Told> calm = train(kNothing, false);
  for (const bool synchronize : {false, true}) {
    const std::vector<Told> told = train(spoil, synchronize);
    const std::string expected = "step 2: ranks disagree on the hyperparameters of group 0";
    for (int32_t r = 0; r < kRanks; ++r) {
      if (synchronize) {
        EXPECT_EQ(told[r].synchronized, expected);
      } else {
        EXPECT_THAT(told[r].thrown(), ElementsAre(expected));
      }
      EXPECT_EQ(told[r].weights, calm[r].weights);
      EXPECT_EQ(told[r].steps, kCalls);
    }
  }
}

// Messages through host memory do not mind.
TEST_F(Refusals, NoStepThatOneRankTracesWhereNoneIsReplayed) {
  const std::vector<Told> calm = train([](int32_t, Optimizer&, Call&) {}, false);
  const std::vector<Told> told =
      train([](int32_t rank, Optimizer&, Call& call) { call.options.trace = rank == 1; }, false);
  for (int32_t r = 0; r < kRanks; ++r) {
    EXPECT_THAT(told[r].thrown(), IsEmpty());
    EXPECT_EQ(told[r].weights, calm[r].weights);
  }
}

#ifdef MUSTER_TEST_HOST_STREAM
// Every rank's, over a communicator whose operations are recorded.
using Work = std::function<void(int32_t rank, Optimizer& optimizer, test::Shards& shards)>;

void on_streams(const OptimizerOptions& options, const Work& work) {
  const Problem problem = test::two_parameters(kRanks);
  auto communicators = make_local_communicators(kRanks);
  test::run_ranks(kRanks, [&](int32_t rank) {
    test::StreamedCommunicator comm(std::move(communicators[rank]));
    test::Shards shards(problem, rank);
    Optimizer optimizer(problem, options, comm, shards.memory);
    work(rank, optimizer, shards);
  });
}

TEST_F(Refusals, AStepThatOneRankTracesAndOthersReplay) {
  for (const bool graph : {true, false}) {
    OptimizerOptions options = test::gpu_options();
    options.graph = graph;
    on_streams(options, [&](int32_t rank, Optimizer& optimizer, test::Shards& shards) {
      std::string told;
      for (int i = 0; i < kCalls; ++i) {
        StepOptions step;
        step.trace = i == kBad && rank == 1;
        told += said([&] { optimizer.step(shards.gradients(static_cast<uint64_t>(i)), step); });
      }
      told += said([&] { optimizer.synchronize(); });
      EXPECT_EQ(told.substr(0, told.find(" (")), graph ? "step 2: ranks disagree on its options" : "");
      EXPECT_EQ(optimizer.steps(), kCalls);
    });
  }
}

// A step that ranks disagree on, some may have recorded and others not: all record anew, at the same time.
TEST_F(Refusals, LeaveNoRankWithRecordsOfItsOwn) {
  const auto decay = [](Optimizer& optimizer) { optimizer.group(0).decay = Decay::kCautious; };
  const std::vector<Spoil> ways{
      [](int32_t rank, Optimizer&, Call& call) { call.options.trace = rank == 1; },
      [](int32_t rank, Optimizer&, Call& call) { call.options.grad_scale = rank == 1 ? kNan : 1; },
      [&](int32_t rank, Optimizer& optimizer, Call&) {
        if (rank == 1) decay(optimizer);
      },
      [&](int32_t rank, Optimizer& optimizer, Call& call) {
        decay(optimizer);
        if (rank == 1) call.gradients.clear();
      },
      [&](int32_t rank, Optimizer& optimizer, Call&) {
        decay(optimizer);
        if (rank == 1) optimizer.group(0).lr = -1;
      },
  };
  for (size_t way = 0; way < ways.size(); ++way) {
    on_streams(test::gpu_options(), [&](int32_t rank, Optimizer& optimizer, test::Shards& shards) {
      const Group good = optimizer.group(0);
      std::vector<bool> replayed;
      for (int i = 0; i < kCalls; ++i) {
        Call call{shards.gradients(static_cast<uint64_t>(i)), {}};
        if (i == kBad) ways[way](rank, optimizer, call);
        said([&] { optimizer.step(call.gradients, call.options); });
        optimizer.group(0).lr = good.lr;
        if (i == kBad && way == 2) optimizer.group(0).decay = good.decay;
        replayed.push_back(optimizer.last_step().replayed);
      }
      replayed.erase(replayed.begin(), replayed.begin() + kBad + 2);
      EXPECT_THAT(replayed, ElementsAre(false, false, true)) << "way " << way << ", rank " << rank;
    });
  }
}

// Two in a row, of which one rank hears at once and the others later.
TEST_F(Refusals, AreForgottenAtTheSameTimeByWhoeverHeardOfThem) {
  for (const bool traced : {true, false}) {
    on_streams(test::gpu_options(), [&](int32_t rank, Optimizer& optimizer, test::Shards& shards) {
      std::string replayed;
      for (int i = 0; i < 10; ++i) {
        const bool bad = i == 3 || i == 4;
        StepOptions options;
        options.trace = bad && traced && rank == 1;
        options.grad_scale = bad && !traced && rank == 0 ? 2 : 1;
        said([&] { optimizer.step(shards.gradients(static_cast<uint64_t>(i)), options); });
        if (bad && rank == 1) said([&] { optimizer.synchronize(); });
        replayed += bad ? '-' : optimizer.last_step().replayed ? 'r' : '.';
      }
      EXPECT_EQ(replayed, "..r--..rrr") << "rank " << rank;
    });
  }
}
#endif

TEST_F(Refusals, OneRankAloneRefusesAtOnceAndDoesNotCount) {
  const Problem problem = test::two_parameters(1);
  test::Shards shards(problem, 0);
  const auto communicators = make_local_communicators(1);
  Optimizer optimizer(problem, test::gpu_options(), *communicators[0], shards.memory);
  const std::vector<void*> gradients = shards.gradients(0);
  for (int i = 0; i < 4; ++i) optimizer.step(gradients);
  optimizer.group(0).lr = kNan;
  EXPECT_THROW(optimizer.step(gradients), InvalidArgument);
  optimizer.group(0).lr = 0.02;
  EXPECT_THAT([&] { optimizer.step(std::span(gradients).first(1)); },
              testing::ThrowsMessage<InvalidArgument>("step 5: 1 gradients, expected 2"));
  EXPECT_EQ(optimizer.step(gradients).step, 5);
  EXPECT_NO_THROW(optimizer.synchronize());
}

TEST_F(Refusals, ADeviceThatIsNotThere) {
  const Problem problem = test::two_parameters(1);
  test::Shards shards(problem, 0);
  const auto communicators = make_local_communicators(1);
  for (const int index : {99, -1}) {
    OptimizerOptions options = test::gpu_options();
    options.device.index = index;
    EXPECT_THAT([&] { Optimizer(problem, options, *communicators[0], shards.memory); },
                testing::ThrowsMessage<InvalidArgument>(HasSubstr("device cuda:" + std::to_string(index) + ":")));
  }
}

// A step that broke off in the middle of its calls is not gone on with after a state has been imported.
TEST_F(Refusals, GoesOnWithAnImportedStateAfterAPeerWasLate) {
  const Problem problem = test::two_parameters(2);
  auto first = make_local_communicators(2, {std::chrono::milliseconds(500)});
  auto second = make_local_communicators(2, {std::chrono::seconds(20)});
  std::vector<std::vector<float>> broken[2];
  std::vector<std::vector<float>> whole[2];
  test::run_ranks(2, [&](int32_t r) {
    test::Shards shards(problem, r);
    Optimizer optimizer(problem, test::gpu_options(), *first[r], shards.memory);
    optimizer.step(shards.gradients(0));
    std::vector<StateTensor> state;
    for (const StateInfo& info : optimizer.state()) state.push_back(optimizer.export_state(info.name));
    if (r == 0) {
      EXPECT_THAT([&] { optimizer.step(shards.gradients(1)); },
                  testing::ThrowsMessage<CommError>(HasSubstr("step 2 broke off: ")));
      EXPECT_THROW(optimizer.step(shards.gradients(1)), CommError);
      EXPECT_THROW(optimizer.synchronize(), CommError);
      EXPECT_THROW(optimizer.save("never"), CommError);
    }
    first[r].reset();
    optimizer.reconnect(*second[r]);
    optimizer.import_state(state);
    for (uint64_t step = 1; step < 5; ++step) optimizer.step(shards.gradients(step));
    optimizer.synchronize();
    broken[r] = shards.weights();
  });
  test::run_ranks(2, [&](Communicator& comm) {
    test::Shards shards(problem, comm.rank());
    Optimizer optimizer(problem, test::gpu_options(), comm, shards.memory);
    for (uint64_t step = 0; step < 5; ++step) optimizer.step(shards.gradients(step));
    optimizer.synchronize();
    whole[comm.rank()] = shards.weights();
  });
  for (int r = 0; r < 2; ++r) EXPECT_EQ(broken[r], whole[r]);
}

}  // namespace
}  // namespace muster
