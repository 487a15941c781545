// Small problems for tests to start from.
#pragma once

#include <string>

#include "model/model.h"
#include "muster/plan.h"

namespace muster::test {

inline Mesh line(int32_t ranks) { return {"world", {{"fsdp", ranks}}, {}}; }

// One parameter `w`, its rows over all ranks.
inline Problem one_parameter(Shape shape, int32_t ranks, Algorithm algorithm = Algorithm::kMuon) {
  Problem problem;
  problem.model = "one";
  problem.ranks = ranks;
  problem.meshes = {line(ranks)};
  Parameter p;
  p.name = "w";
  p.shape = std::move(shape);
  p.layout = {0, {Placement::shard(0)}, {}};
  p.algorithm = algorithm;
  problem.parameters = {p};
  return problem;
}

// `w` for NorMuon and `v` for another, their rows over all ranks.
inline Problem two_parameters(int32_t ranks, Algorithm second = Algorithm::kAdamW) {
  Problem problem = one_parameter({12, 10}, ranks, Algorithm::kNorMuon);
  problem.parameters.push_back(problem.parameters[0]);
  problem.parameters[1].name = "v";
  problem.parameters[1].algorithm = second;
  return problem;
}

inline void replicate(Problem& problem) {
  for (Parameter& p : problem.parameters) p.layout.placements = {Placement::replicate()};
}

inline Problem preset(const std::string& name, const std::string& mesh,
                      std::vector<std::pair<std::string, int64_t>> set = {}) {
  ModelOptions options;
  options.mesh = mesh;
  options.set = std::move(set);
  return load_model(name, options);
}

inline PlanOptions with(Strategy strategy) {
  PlanOptions options;
  options.strategy = strategy;
  options.scratch_bytes = 0;
  return options;
}

}  // namespace muster::test
