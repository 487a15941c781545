// State that leaves a device and comes back, and how much memory an optimizer takes there.
#include <filesystem>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "on_device.h"

namespace muster {
namespace {

using DeviceState = test::OnDevice;
using testing::Each;

constexpr int kBefore = 3;
constexpr int kAfter = 3;

// Steps `first` onwards of the same training.
test::Training part(int32_t ranks, int first, int steps) {
  test::Training t = test::mixed_training(ranks);
  t.steps = steps;
  t.options.groups[1].every = 2;
  t.options.seed = 7;
  const auto gradient = t.gradient;
  t.gradient = [=](int32_t r, size_t p, int64_t element, int step) { return gradient(r, p, element, first + step); };
  return t;
}

struct Directory {
  Directory() : path(std::filesystem::path(testing::TempDir()) / ("muster-device-" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path);
  }
  ~Directory() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
};

TEST_F(DeviceState, ImportedWhereAnotherStopped) {
  for (const int32_t ranks : {1, 2}) {
    const std::vector<test::RankMemory> before = test::train(part(ranks, 0, kBefore));
    ASSERT_THAT(test::errors(before), Each(""));
    test::Training after = part(ranks, kBefore, kAfter);
    after.before = [&](Optimizer& optimizer) {
      optimizer.import_state(before[0].state);
      EXPECT_EQ(optimizer.steps(), kBefore);
      for (const StateTensor& tensor : before[0].state) {
        EXPECT_EQ(optimizer.export_state(tensor.name).data, tensor.data) << tensor.name;
      }
    };
    const test::RankMemory whole = test::train(test::on_one_rank(part(ranks, 0, kBefore + kAfter)))[0];
    EXPECT_EQ(test::difference(after.problem, test::train(after), whole), "") << ranks << " ranks";
  }
}

// In the middle of replayed steps: what was recorded before goes on afterwards.
TEST_F(DeviceState, ImportedBetweenRecordedSteps) {
  const test::RankMemory before = test::train(part(1, 0, kBefore))[0];
  ASSERT_EQ(before.error, "");
  test::Training twice = part(1, kBefore, 2 * kAfter);
  const auto gradient = part(1, kBefore, kAfter).gradient;
  twice.gradient = [=](int32_t r, size_t p, int64_t element, int step) {
    return gradient(r, p, element, step % kAfter);
  };
  twice.before_step = [&](Optimizer& optimizer, int step) {
    if (step % kAfter == 0) optimizer.import_state(before.state);
  };
  const test::RankMemory whole = test::train(part(1, 0, kBefore + kAfter))[0];
  EXPECT_EQ(test::difference(twice.problem, test::train(twice), whole), "");
}

TEST_F(DeviceState, SavedAndLoadedByOtherRanksAndTheCpu) {
  const Directory directory;
  test::Training before = part(3, 0, kBefore);
  before.after = [&](Optimizer& optimizer) { optimizer.save(directory.path); };
  const std::vector<test::RankMemory> saved = test::train(before);
  ASSERT_THAT(test::errors(saved), Each(""));
  test::Training after = part(2, kBefore, kAfter);
  after.before = [&](Optimizer& optimizer) { optimizer.load(directory.path); };
  const test::RankMemory whole = test::train(part(1, 0, kBefore + kAfter))[0];
  EXPECT_EQ(test::difference(after.problem, test::train(after), whole), "");

  test::Training on_cpu = part(1, kBefore, 0);
  on_cpu.options.device = {};
  on_cpu.before = after.before;
  EXPECT_EQ(test::difference(before.problem, saved, test::train(on_cpu)[0]), "");
}

size_t free_bytes() {
  size_t free = 0;
  size_t total = 0;
  kernels::cuda::check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

// Matrices and a table of elements that are all alike; their values do not matter.
struct Model {
  Model(int64_t side, int matrices) : problem(test::one_parameter({side, side}, 1, Algorithm::kNorMuon)) {
    for (int i = 1; i < matrices; ++i) {
      problem.parameters.push_back(problem.parameters[0]);
      problem.parameters.back().name = "w" + std::to_string(i);
    }
    problem.parameters.push_back(problem.parameters[0]);
    problem.parameters.back().name = "embed";
    problem.parameters.back().algorithm = Algorithm::kAdamW;
    for (const Parameter& p : problem.parameters) {
      const auto elements = static_cast<size_t>(element_count(p.shape));
      memory.push_back({filled(elements)});
      gradients.push_back(filled(elements));
      state_bytes += static_cast<int64_t>(elements) * (p.algorithm == Algorithm::kAdamW ? 8 : 4);
    }
  }
  void* filled(size_t elements) {
    float* const data = vectors.emplace_back(std::make_unique<kernels::cuda::DeviceVector<float>>(elements))->data();
    kernels::cuda::check(cudaMemset(data, 0x3c, elements * sizeof(float)), "cudaMemset");
    return data;
  }

  Problem problem;
  std::vector<ParameterMemory> memory;
  std::vector<void*> gradients;
  int64_t state_bytes = 0;
  std::vector<std::unique_ptr<kernels::cuda::DeviceVector<float>>> vectors;
};

TEST_F(DeviceState, TakesWhatItSaysAndNoMoreThanTheCap) {
  constexpr int64_t kSlack = int64_t{48} << 20;  // tables, graphs, and what the driver rounds up
  const auto communicators = make_local_communicators(1);
  const auto train = [&](Model& model, const OptimizerOptions& options, auto look) {
    Optimizer optimizer(model.problem, options, *communicators[0], model.memory);
    for (int step = 0; step < 4; ++step) optimizer.step(model.gradients);
    optimizer.synchronize();
    look(optimizer);
  };
  Model model(4096, 24);
  for (const int64_t cap : {int64_t{1} << 30, int64_t{700} << 20}) {
    OptimizerOptions options = test::gpu_options();
    options.plan.scratch_bytes = cap;
    train(model, options, [](Optimizer&) {});  // kernels are loaded when they are first used
    const auto before = static_cast<int64_t>(free_bytes());
    train(model, options, [&](Optimizer& optimizer) {
      const int64_t taken = before - static_cast<int64_t>(free_bytes());
      const int64_t scratch = optimizer.scratch_bytes();
      EXPECT_LE(scratch, cap);
      EXPECT_GT(scratch, int64_t{64} << 20) << "too small a problem to say anything";
      EXPECT_LE(taken, scratch + model.state_bytes + kSlack);
      EXPECT_GE(taken, scratch + model.state_bytes - kSlack);
    });
    EXPECT_GE(static_cast<int64_t>(free_bytes()), before - kSlack) << "gives it back";
  }
  EXPECT_EQ(OptimizerOptions{}.plan.scratch_bytes, int64_t{1} << 30);
}

}  // namespace
}  // namespace muster
