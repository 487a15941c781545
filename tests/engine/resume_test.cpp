// Training that stops on some ranks of one layout and goes on on others of another.
#include <algorithm>
#include <barrier>
#include <filesystem>
#include <fstream>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "support/problems.h"
#include "support/training.h"

namespace muster {
namespace {

constexpr int kBefore = 2;
constexpr int kAfter = 2;

// Every algorithm and weight form, in a layout of `ranks` ranks.
Problem problem(int32_t ranks, const Layout& matrices, const Layout& elements, std::vector<MeshAxis> axes) {
  Problem out;
  out.model = "resumed";
  out.ranks = ranks;
  out.meshes = {{"world", std::move(axes), {}}};
  const auto add = [&](std::string name, Shape shape, Dtype dtype, Algorithm algorithm) {
    Parameter& p = out.parameters.emplace_back();
    p.name = std::move(name);
    p.shape = std::move(shape);
    p.dtype = dtype;
    p.algorithm = algorithm;
    p.layout = is_matrix_algorithm(algorithm) ? matrices : elements;
  };
  for (int layer = 0; layer < 4; ++layer) {
    add("blocks." + std::to_string(layer) + ".qkv", {24, 10}, Dtype::kBf16, Algorithm::kNorMuon);
    out.parameters.back().matrices.rows = {{8, {}, {}}, {8, {}, NormAxis::kRows}, {8, false, {}}};
    add("blocks." + std::to_string(layer) + ".mlp", {17, 13}, Dtype::kF32, Algorithm::kMuon);
  }
  add("embed", {19, 11}, Dtype::kBf16, Algorithm::kAdamW);
  add("gain", {23}, Dtype::kF32, Algorithm::kLion);
  return out;
}

Problem on_eight() {
  return problem(8, {0, {Placement::shard(0), Placement::replicate()}, {}},
                 {0, {Placement::replicate(), Placement::shard(0)}, {}}, {{"fsdp", 4}, {"replicate", 2}});
}
Problem on_two_nodes() {
  const Layout layout{0, {Placement::replicate(), Placement::shard(0)}, {}};
  return problem(8, layout, layout, {{"replicate", 2}, {"fsdp", 4}});
}
Problem on_three() {
  Problem out = problem(3, {0, {Placement::shard(1)}, {}}, {0, {Placement::flat()}, {}}, {{"tp", 3}});
  for (Parameter& p : out.parameters)
    p.layout.placements[0] = p.shape.size() > 1 ? Placement::shard(1) : Placement::flat();
  return out;
}

test::Training training(Problem problem, Strategy strategy, int first, int steps) {
  test::Training t;
  t.problem = std::move(problem);
  t.options.plan.strategy = strategy;
  t.options.seed = first == 0 ? 5 : 6;  // a checkpoint brings its own
  t.steps = steps;
  t.gradient = [first](int32_t, size_t p, int64_t element, int step) {
    return test::made_up(p, element, 100 + static_cast<uint64_t>(first + step));
  };
  t.form = [](size_t p) {
    constexpr WeightForm kForms[] = {WeightForm::kBf16Master, WeightForm::kBf16Mantissa, WeightForm::kBf16Stochastic};
    return kForms[p / 2 % 3];
  };
  return t;
}

struct Directory {
  Directory() : path(std::filesystem::path(testing::TempDir()) / ("muster-resume-" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path);
  }
  ~Directory() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

TEST(Resume, OnOtherRanksOfAnotherLayoutBitForBit) {
  const Directory directory;
  for (const bool sync : {false, true}) {
    test::Training before = training(on_eight(), Strategy::kGlobal, 0, kBefore);
    before.problem.grad_sync = sync;
    before.options.plan.waves = 3;
    before.after = [&](Optimizer& optimizer) { optimizer.save(directory.path); };
    for (const test::RankMemory& rank : test::train(before)) ASSERT_EQ(rank.error, "");

    test::Training after = training(on_three(), Strategy::kMegabatch, kBefore, kAfter);
    after.before = [&](Optimizer& optimizer) {
      optimizer.load(directory.path);
      EXPECT_EQ(optimizer.steps(), kBefore);
    };
    const test::RankMemory whole =
        test::train(test::on_one_rank(training(on_eight(), Strategy::kGlobal, 0, kBefore + kAfter)))[0];
    EXPECT_EQ(test::difference(after.problem, test::train(after), whole), "") << "grad_sync " << sync;
  }
}

// Both keepers of state write the same checkpoints: holders save it and the engine loads it, and the other way.
TEST(Resume, WhereHoldersKeepTheState) {
  const auto held = [](Problem problem) {
    for (Parameter& p : problem.parameters) p.state_keeper = StateKeeper::kHolders;
    return problem;
  };
  for (const bool first : {false, true}) {
    for (const bool then : {false, true}) {
      const Directory directory;
      test::Training before = training(first ? held(on_eight()) : on_eight(), Strategy::kGlobal, 0, kBefore);
      before.after = [&](Optimizer& optimizer) { optimizer.save(directory.path); };
      for (const test::RankMemory& rank : test::train(before)) ASSERT_EQ(rank.error, "");
      test::Training after = training(then ? held(on_three()) : on_three(), Strategy::kGlobal, kBefore, kAfter);
      after.before = [&](Optimizer& optimizer) { optimizer.load(directory.path); };
      const test::RankMemory whole =
          test::train(test::on_one_rank(training(on_eight(), Strategy::kGlobal, 0, kBefore + kAfter)))[0];
      EXPECT_EQ(test::difference(after.problem, test::train(after), whole), "") << first << then;
    }
  }
}

// Every replica has momentum and variances of its own; one of them is saved, and all load it.
TEST(Resume, InReplicasThatRecompute) {
  const auto apart = [](test::Training t) {
    t.options.plan.cost.ranks_per_node = 4;
    t.options.plan.cost.inter_node_mbps = 10;
    const Plan plan = make_plan(t.problem, t.options.plan);
    EXPECT_NE(std::count(plan.each_replica.begin(), plan.each_replica.end(), true), 0);
    return t;
  };
  const Directory directory;
  test::Training before = apart(training(on_two_nodes(), Strategy::kGlobal, 0, kBefore));
  before.after = [&](Optimizer& optimizer) { optimizer.save(directory.path); };
  for (const test::RankMemory& rank : test::train(before)) ASSERT_EQ(rank.error, "");
  test::Training after = apart(training(on_two_nodes(), Strategy::kGlobal, kBefore, kAfter));
  after.before = [&](Optimizer& optimizer) { optimizer.load(directory.path); };
  const std::vector<test::RankMemory> ranks = test::train(after);

  const test::Training whole = training(on_two_nodes(), Strategy::kGlobal, 0, kBefore + kAfter);
  EXPECT_EQ(test::difference(after.problem, ranks, test::train(test::on_one_rank(whole))[0]), "");
}

TEST(Resume, ADamagedCheckpointIsNamedAndChangesNothing) {
  const Directory directory;
  test::Training before = training(on_eight(), Strategy::kGlobal, 0, 1);
  before.after = [&](Optimizer& optimizer) { optimizer.save(directory.path); };
  for (const test::RankMemory& rank : test::train(before)) ASSERT_EQ(rank.error, "");
  std::filesystem::path data;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path)) {
    if (entry.path().extension() == ".safetensors") data = entry.path();
  }
  {
    std::fstream file(data, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const int byte = file.peek();
    file.seekp(-1, std::ios::end);
    file.put(static_cast<char>(byte ^ 4));
  }
  test::Training after = training(on_three(), Strategy::kGlobal, 0, 2);
  after.before = [&](Optimizer& optimizer) {
    try {
      optimizer.load(directory.path);
      ADD_FAILURE() << "loaded";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(data.filename().string()));
    }
    EXPECT_EQ(optimizer.steps(), 0);
  };
  const test::RankMemory one = test::train(test::on_one_rank(training(on_three(), Strategy::kGlobal, 0, 2)))[0];
  EXPECT_EQ(test::difference(after.problem, test::train(after), one), "");
}

// A save or load that the machine refuses aborted the communicator, although nothing had been changed.
TEST(Resume, AfterASaveAndALoadThatTheMachineRefused) {
  const Directory directory;
  test::Training t = training(on_three(), Strategy::kGlobal, 0, 2);
  rlimit old{};
  ::getrlimit(RLIMIT_NOFILE, &old);
  const auto allow_files = [&](rlim_t most) {
    rlimit limit = old;
    limit.rlim_cur = most;
    ::setrlimit(RLIMIT_NOFILE, &limit);
  };
  std::barrier no_files(t.problem.ranks, [&]() noexcept { allow_files(0); });
  std::barrier files_again(t.problem.ranks, [&]() noexcept { allow_files(old.rlim_cur); });
  t.before = [&](Optimizer& optimizer) {
    optimizer.save(directory.path);
    no_files.arrive_and_wait();
    EXPECT_THROW(optimizer.save(directory.path), ResourceError);
    EXPECT_THROW(optimizer.load(directory.path), ResourceError);
    files_again.arrive_and_wait();
    optimizer.save(directory.path);
  };
  const test::RankMemory one = test::train(test::on_one_rank(training(on_three(), Strategy::kGlobal, 0, 2)))[0];
  EXPECT_EQ(test::difference(t.problem, test::train(t), one), "");
}

}  // namespace
}  // namespace muster
