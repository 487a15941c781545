// Ranks that disagree, refuse, fail, leave or are late: every rank says so, and nothing goes on as if it were whole.
#include <atomic>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"
#include "muster/optimizer.h"
#include "support/problems.h"
#include "support/tamper.h"
#include "support/training.h"

namespace muster {
namespace {

using test::errors;
using test::replicate;
using test::training;
using test::two_parameters;
using testing::AllOf;
using testing::Each;
using testing::Field;
using testing::HasSubstr;
using testing::StrEq;

// What a body throws on each of two ranks as InvalidArgument.
std::vector<std::string> refusals(const std::function<void(Communicator&)>& body) {
  std::vector<std::string> said(2);
  auto communicators = make_local_communicators(2, {std::chrono::seconds(10)});
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const std::unique_ptr<Communicator> mine = std::move(communicators[r]);
      try {
        body(*mine);
      } catch (const InvalidArgument& error) {
        said[r] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return said;
}

TEST(Disagreement, NamesTheParameterThatRanksDisagreeOn) {
  const auto said = refusals([](Communicator& communicator) {
    Problem problem = two_parameters(2);
    if (communicator.rank() == 1) problem.parameters[1].multiplier = 2;
    std::vector<float> memory(60);
    Optimizer optimizer(problem, {}, communicator, {{memory.data()}, {memory.data()}});
  });
  EXPECT_THAT(said, Each(HasSubstr("parameter 1 ('v'")));
}

TEST(Disagreement, RefusesMemoryThatDoesNotFitOnEveryRank) {
  const auto said = [](const std::function<void(int32_t, std::vector<ParameterMemory>&, OptimizerOptions&)>& spoil) {
    return refusals([&](Communicator& communicator) {
      std::vector<float> memory(60);
      std::vector<ParameterMemory> parameters{{memory.data()}, {memory.data()}};
      OptimizerOptions options;
      spoil(communicator.rank(), parameters, options);
      Optimizer optimizer(two_parameters(2), options, communicator, parameters);
    });
  };
  using Memory = std::vector<ParameterMemory>;
  EXPECT_THAT(said([](int32_t r, Memory& m, OptimizerOptions&) {
                if (r == 1) m.pop_back();
              }),
              Each(HasSubstr("memory for 1 parameters, expected 2")));
  EXPECT_THAT(said([](int32_t r, Memory& m, OptimizerOptions&) {
                if (r == 1) m[1].weight = nullptr;
              }),
              Each(HasSubstr("parameter 'v': no memory for the 60 elements of rank 1")));
  EXPECT_THAT(said([](int32_t, Memory& m, OptimizerOptions&) { m[0].group = 1; }),
              Each(HasSubstr("parameter 'w': group 1: expected 0 to 0")));
  EXPECT_THAT(said([](int32_t, Memory& m, OptimizerOptions&) { m[0].form = WeightForm::kBf16; }),
              Each(HasSubstr("parameter 'w': its form stores bf16, its dtype is f32")));
  EXPECT_THAT(said([](int32_t, Memory&, OptimizerOptions& o) { o.groups[0].beta1 = 1; }),
              Each(HasSubstr("beta1 1: expected 0 to below 1")));
  const std::vector<void (*)(OptimizerOptions&)> changes = {
      [](OptimizerOptions& o) { o.seed = 1; },
      [](OptimizerOptions& o) { o.momentum = Dtype::kBf16; },
      [](OptimizerOptions& o) { o.overlap = true; },
      [](OptimizerOptions& o) { o.graph = false; },
      [](OptimizerOptions& o) { o.groups.emplace_back(); },
  };
  for (const auto change : changes) {
    EXPECT_THAT(said([change](int32_t r, Memory&, OptimizerOptions& o) {
                  if (r == 1) change(o);
                }),
                Each(StrEq("ranks disagree: same parameters, but other options on rank 1 than on rank 0")));
  }
  EXPECT_THAT(said([](int32_t r, Memory&, OptimizerOptions& o) { o.plan.cost.message_ns += r; }),
              Each(StrEq("ranks disagree: same parameters, but other cost tables on rank 1 than on rank 0")));
  EXPECT_THAT(said([](int32_t r, Memory&, OptimizerOptions& o) { o.plan.elementwise = ElementwiseOrder(r); }),
              Each(StrEq("ranks disagree: same parameters, but other plan options on rank 1 than on rank 0")));
}

TEST(Disagreement, RefusesReplicasThatStartFromDifferentWeights) {
  const auto said = refusals([](Communicator& communicator) {
    Problem problem = two_parameters(2);
    replicate(problem);
    std::vector<float> w(120);
    std::vector<float> v(120);
    if (communicator.rank() == 1) v[119] = 1e-30F;
    Optimizer optimizer(problem, {}, communicator, {{w.data()}, {v.data()}});
  });
  EXPECT_THAT(said, Each(HasSubstr("parameter 'v': replicas start from different weights")));
}

TEST(Disagreement, RefusesBadStepsOnEveryRankAndGoesOn) {
  test::Training t = training(two_parameters(3));
  t.steps = 1;
  std::vector<std::vector<std::string>> said(3);
  std::atomic<int> next = 0;
  t.after = [&](Optimizer& optimizer) {
    const int rank = next++;  // some number for each
    std::vector<float> gradient(120);
    std::vector<void*> pointers{gradient.data(), gradient.data()};
    const auto attempt = [&](std::span<void* const> gradients, const StepOptions& options) {
      try {
        optimizer.step(gradients, options);
        said[rank].push_back("");
      } catch (const InvalidArgument& error) {
        said[rank].push_back(error.what());
      }
    };
    attempt(std::span(pointers).first(rank == 0 ? 1 : 2), {});
    StepOptions options;
    options.grad_scale = rank == 1 ? 2 : 1;
    attempt(pointers, options);
    optimizer.group(0).lr = rank == 2 ? 0.5 : 0.25;
    attempt(pointers, {});
    optimizer.group(0).lr = -1;
    attempt(pointers, {});
    optimizer.group(0).lr = 0.25;
    attempt(pointers, {});
    EXPECT_EQ(optimizer.steps(), 2);
  };
  EXPECT_THAT(errors(test::train(t)), Each(""));
  for (const auto& one : said) {
    ASSERT_EQ(one.size(), 5);
    EXPECT_THAT(one[0], testing::AnyOf("step 2: 1 gradients, expected 2",
                                       testing::MatchesRegex("step 2: rank [0-2] refused it")));
    EXPECT_THAT(one[1], testing::StartsWith("step 2: ranks disagree on its options"));
    EXPECT_EQ(one[2], "step 2: ranks disagree on the hyperparameters of group 0");
    EXPECT_EQ(one[3], "step 2: group 0: lr -1: expected a finite number, at least 0");
    EXPECT_EQ(one[4], "");
  }
}

// Ranks that loaded different checkpoints waited for each other's messages, or mixed them up.
TEST(Disagreement, NamesRanksThatHaveDoneAnotherNumberOfSteps) {
  test::Training t = training(test::one_parameter({9, 9}, 3));
  t.steps = 2;
  EXPECT_THAT(test::refusals_after(t, {0, 0, 7}),
              Each(HasSubstr("ranks disagree on the number of steps done: 0 on ranks 0, 1; 7 on rank 2")));
}

// Experts that are local to a rank and start from zeros passed for replicas: each rank then applied the update of one.
TEST(Disagreement, NamesReplicasWithDifferentGradients) {
  for (const int64_t step : {1, 2, 3, 4, 64}) {
    Problem problem = test::one_parameter({6, 4}, 4);
    test::replicate(problem);
    test::Training t = training(problem);
    t.steps = static_cast<int>(step);
    t.gradient = [step](int32_t rank, size_t p, int64_t element, int at) {
      const bool other = rank == 2 && at + 1 == step;
      return test::made_up(p, element, static_cast<uint64_t>(at) + (other ? 1000 : 0));
    };
    const std::vector<test::RankMemory> ranks = test::train(t);
    const std::vector<std::string> said = errors(ranks);
    if (step == 3) {  // between two steps that compare
      EXPECT_THAT(said, Each(""));
      continue;
    }
    EXPECT_THAT(ranks, Each(AllOf(Field(&test::RankMemory::code, ErrorCode::kReplicaGradientsDiffer),
                                  Field(&test::RankMemory::about, "w"))));
    EXPECT_THAT(said, Each(HasSubstr("its replicas have different gradients: those of rank 2 are not those of rank 0")))
        << step;
  }
}

// Ranks that hold other shards of something have other gradients of it, and are not named for that.
TEST(Disagreement, NamesOnlyRanksThatHoldTheSame) {
  Problem problem = test::one_parameter({6, 4}, 4);
  problem.meshes = {{"world", {{"dp", 2}, {"tp", 2}}, {}}};
  problem.parameters[0].layout.placements = {Placement::replicate(), Placement::shard(0)};
  problem.parameters.push_back(problem.parameters[0]);
  problem.parameters[1].name = "norm";
  problem.parameters[1].layout.placements = {Placement::replicate(), Placement::replicate()};
  test::Training t = training(problem);
  t.steps = 1;
  t.gradient = [](int32_t rank, size_t p, int64_t element, int) {
    return test::made_up(p, element, p == 0 && rank == 2 ? 1000 : 1);
  };
  EXPECT_THAT(errors(test::train(t)),
              Each(HasSubstr("'w': its replicas have different gradients: those of rank 2 are not those of rank 0")));
}

TEST(Disagreement, RefusesToGoOnAfterAPeerIsGone) {
  test::Training t = training(test::one_parameter({9, 9}, 3));
  t.timeout = std::chrono::milliseconds(500);
  t.steps = 2;
  std::atomic<int> next = 0;
  t.before_step = [&](Optimizer&, int step) {
    if (step == 1 && next++ == 0) throw InvalidArgument("this rank leaves");
  };
  const std::vector<test::RankMemory> ranks = test::train(t);
  int left = 0;
  for (const test::RankMemory& rank : ranks) {
    if (rank.error == "this rank leaves") {
      ++left;
    } else {
      EXPECT_THAT(rank.error, HasSubstr("step 2 broke off"));
    }
  }
  EXPECT_EQ(left, 1);
}

TEST(Disagreement, DoesNotWaitForARankThatNeverArrives) {
  test::Training t = training(test::one_parameter({9, 9}, 3));
  t.timeout = std::chrono::milliseconds(300);
  t.steps = 2;
  std::atomic<int> next = 0;
  std::atomic<int> sleeping = 0;
  t.before_step = [&](Optimizer&, int step) {
    if (step != 1 || next++ > 0) return;
    ++sleeping;
    std::this_thread::sleep_for(std::chrono::seconds(2));
    --sleeping;
  };
  std::atomic<int> in_time = 0;
  t.failed = [&](Optimizer& optimizer, const std::string& error) {
    EXPECT_THAT(error, HasSubstr("step 2 broke off: all_reduce 'agreement on a step'"));
    if (sleeping > 0) ++in_time;  // the others did not wait for it to wake up
    try {
      optimizer.save("never");
      ADD_FAILURE() << "a broken optimizer saves";
    } catch (const CommError& broken) {
      EXPECT_EQ(broken.code(), ErrorCode::kRankMissing) << broken.what();
    }
  };
  for (const test::RankMemory& rank : test::train(t)) EXPECT_THAT(rank.error, HasSubstr("step 2 broke off"));
  EXPECT_EQ(in_time, 2);
}

TEST(Disagreement, NeitherStepsNorSavesOnceBrokenUntilAStateIsImported) {
  const Problem problem = test::one_parameter({9, 9}, 2);
  auto first = make_local_communicators(2, {std::chrono::milliseconds(300)});
  auto second = make_local_communicators(2, {std::chrono::seconds(10)});
  auto swapped = make_local_communicators(2, {std::chrono::seconds(10)});
  std::vector<std::string> said;
  const auto run = [&](size_t r) {
    const size_t held = r == 0 ? 45 : 36;
    std::vector<float> weights(held, 0.5F);
    std::vector<float> gradient(held, 1.0F);
    gradient[0] = 3;
    std::vector<void*> pointers{gradient.data()};
    Optimizer optimizer(problem, {}, *first[r], {{weights.data()}});
    optimizer.step(pointers);
    std::vector<StateTensor> state;
    for (const StateInfo& info : optimizer.state()) state.push_back(optimizer.export_state(info.name));
    const std::vector<float> kept = weights;
    if (r == 0) {
      const auto attempt = [&](const std::function<void()>& work) {
        try {
          work();
          said.push_back("");
        } catch (const CommError& error) {
          said.push_back(error.what());
        }
      };
      attempt([&] { optimizer.step(pointers); });
      attempt([&] { optimizer.step(pointers); });
      attempt([&] { optimizer.save("never"); });
      attempt([&] { optimizer.export_state(":steps"); });
    }
    first[r].reset();
    EXPECT_THAT([&] { optimizer.reconnect(*swapped[1 - r]); },
                testing::ThrowsMessage<InvalidArgument>("rank 0: reconnect: rank 0 of 2, expected rank 1 of 2"));
    optimizer.reconnect(*second[r]);
    // The other one was not stepping when the first broke off. Were it to go on, it would wait for the first.
    EXPECT_THROW(optimizer.step(pointers), CommError);
    std::fill(weights.begin(), weights.end(), -7.0F);
    optimizer.import_state(state);
    EXPECT_EQ(weights, kept);
    EXPECT_EQ(optimizer.step(pointers).step, 2);
  };
  std::thread other([&] { run(1); });
  run(0);
  other.join();
  ASSERT_EQ(said.size(), 4);
  EXPECT_THAT(said, Each(HasSubstr("step 2 broke off")));
}

// An error that only one rank has, before anything was changed (where averages travel for their norm) and after.
TEST(Disagreement, AnErrorOfOneRankReleasesTheOthersAtOnce) {
  for (const double max_grad_norm : {1.0, 0.0}) {
    test::Training t = training(two_parameters(3));
    replicate(t.problem);
    t.problem.grad_sync = true;
    t.step_options = [=](int) {
      StepOptions options;
      options.max_grad_norm = max_grad_norm;
      return options;
    };
    static thread_local int step_of_rank;  // each rank is a thread
    t.before_step = [](Optimizer&, int step) { step_of_rank = step; };
    t.tamper = [](std::unique_ptr<Communicator> inner) {
      const int32_t rank = inner->rank();
      return std::make_unique<test::TamperingCommunicator>(
          std::move(inner), [rank](std::string_view label, int32_t, std::span<std::byte>) {
            if (rank == 1 && step_of_rank == 1 && label.starts_with("wave ")) throw std::bad_alloc();
          });
    };
    const std::vector<std::string> said = errors(test::train(t));
    EXPECT_EQ(said[1], std::bad_alloc().what());
    EXPECT_THAT(said[0], HasSubstr("rank 1 aborted: step 2 broke off"));
    EXPECT_THAT(said[2], HasSubstr("rank 1 aborted: step 2 broke off"));
  }
}

}  // namespace
}  // namespace muster
