// One matrix on one rank: NorMuon moves it to a target.
#include <cmath>
#include <cstdio>
#include <vector>

#include "muster/error.h"
#include "muster/optimizer.h"

constexpr int kRows = 32, kColumns = 16, kSteps = 100;

int main() try {
  // What is trained, and which rank holds which part of it.
  muster::Problem problem{.model = "minimal", .ranks = 1, .meshes = {{"world", {{"fsdp", 1}}, {}}}};
  problem.parameters.push_back({.name = "weight", .shape = {kRows, kColumns}});
  problem.parameters[0].layout.placements = {muster::Placement::shard(0)};

  // One communicator and one optimizer per rank. Weights, gradients and their memory are the caller's.
  const auto communicators = muster::make_local_communicators(1);
  std::vector<float> weight(kRows * kColumns), gradient(weight.size());
  muster::Optimizer optimizer(problem, {}, *communicators[0], {{.weight = weight.data()}});

  std::vector<void*> gradients{gradient.data()};
  for (int step = 0; step < kSteps; ++step) {
    double loss = 0;
    for (size_t i = 0; i < weight.size(); ++i) {
      gradient[i] = weight[i] - std::sin(static_cast<float>(i * i));
      loss += gradient[i] * gradient[i];
    }
    if (step % 33 == 0) std::printf("step %3d  loss %7.2f\n", step, loss);
    optimizer.group(0).lr = 0.2 * (1 - static_cast<double>(step) / kSteps);
    optimizer.step(gradients);
  }
} catch (const muster::Error& error) {
  std::fprintf(stderr, "minimal: %s\n", error.what());
  return 1;
}
