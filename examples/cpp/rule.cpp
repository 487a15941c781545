// A rule of your own on one rank: rows are divided by the root of their mean squares over time.
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "muster/error.h"
#include "muster/optimizer.h"

// [rule]
class RowAdaptive : public muster::Rule {
 public:
  std::string name() const override { return "row_adaptive"; }
  std::vector<muster::RuleState> state() const override { return {{"square", muster::RuleStateShape::kRows}}; }
  void update(const muster::RuleBatch& batch) override {  // one matrix, because batched() is false
    const double correction = 1 - std::pow(batch.group.beta2, static_cast<double>(batch.step));
    for (int64_t i = 0; i < batch.rows; ++i) {
      float* const row = batch.updates + i * batch.columns;
      double sum = 0;
      for (int64_t j = 0; j < batch.columns; ++j) sum += static_cast<double>(row[j]) * row[j];
      float& square = batch.state[0].data[i];
      square += static_cast<float>((1 - batch.group.beta2) * (sum / static_cast<double>(batch.columns) - square));
      const double root = std::sqrt(square / correction) + batch.group.eps;
      for (int64_t j = 0; j < batch.columns; ++j) row[j] = static_cast<float>(row[j] / root);
    }
  }
};
// [/rule]

constexpr int kRows = 32, kColumns = 16, kSteps = 100;

int main() try {
  muster::Problem problem{.model = "rule", .ranks = 1, .meshes = {{"world", {{"fsdp", 1}}, {}}}};
  problem.parameters.push_back({.name = "weight", .shape = {kRows, kColumns}});
  problem.parameters[0].layout.placements = {muster::Placement::shard(0)};
  muster::OptimizerOptions options;
  // [use]
  problem.parameters[0].algorithm = muster::Algorithm::kRule;
  options.rules = {std::make_shared<RowAdaptive>()};  // one per group
  // [/use]
  const auto communicators = muster::make_local_communicators(1);
  std::vector<float> weight(kRows * kColumns), gradient(weight.size());
  muster::Optimizer optimizer(problem, options, *communicators[0], {{.weight = weight.data()}});

  std::vector<void*> gradients{gradient.data()};
  for (int step = 0; step < kSteps; ++step) {
    double loss = 0;
    for (size_t i = 0; i < weight.size(); ++i) {
      gradient[i] = weight[i] - std::sin(static_cast<float>(i * i));
      loss += gradient[i] * gradient[i];
    }
    if (step % 33 == 0) std::printf("step %3d  loss %7.2f\n", step, loss);
    optimizer.group(0).lr = 0.05 * (1 - static_cast<double>(step) / kSteps);
    optimizer.step(gradients);
  }
} catch (const muster::Error& error) {
  std::fprintf(stderr, "rule: %s\n", error.what());
  return 1;
}
