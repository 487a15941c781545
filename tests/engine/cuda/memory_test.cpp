// How much of a device's memory an optimizer takes.
#include <memory>

#include <gtest/gtest.h>

#include "on_device.h"

namespace muster {
namespace {

using DeviceMemory = test::OnDevice;

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

TEST_F(DeviceMemory, TakesWhatItSaysAndNoMoreThanTheCap) {
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
  EXPECT_FALSE(OptimizerOptions{}.plan.scratch_bytes.has_value());
}

}  // namespace
}  // namespace muster
