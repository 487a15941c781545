// A plan made by hand, so that reports can be tested without the planner's choices.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "plan/explain.h"
#include "plan_text/plan_report.h"

namespace muster::plan_text {

struct Sample {
  Problem problem;
  Plan plan;
  PlanSummary summary;
  CostTable cost;

  PlanReport report() const {
    return {.problem = problem, .plan = plan, .summary = summary, .cost = cost, .plan_ns = 1'500'000};
  }
};

struct SampleOptions {
  int32_t ranks = 4;
  int32_t waves = 2;
};

// An explanation of the sample's first parameter: `count` matrices of 64x64, of which one is shown with candidates.
inline plan::Explanation explain_one(int32_t count, std::vector<plan::Candidate> candidates) {
  plan::Explanation explanation;
  explanation.matrix_count = count;
  plan::MatrixExplanation& matrix = explanation.matrices.emplace_back();
  matrix.rows = matrix.columns = 64;
  matrix.holders = static_cast<int32_t>(candidates.size());
  matrix.candidates = std::move(candidates);
  return explanation;
}

// Eight 64x64 matrices, four 256x64 ones and a gain, rows over `fsdp`; rank r takes (r + 1) * 100 µs, a fifth of it
// exchange.
inline Sample make_sample(const SampleOptions& options = {}) {
  Sample sample;
  Problem& problem = sample.problem;
  problem.model = "sample";
  problem.ranks = options.ranks;
  problem.meshes = {{"world", {{"fsdp", options.ranks}}, {}}};
  const auto add = [&problem](const std::string& name, const Shape& shape, Algorithm algorithm) {
    Parameter parameter;
    parameter.name = name;
    parameter.shape = shape;
    parameter.algorithm = algorithm;
    parameter.layout.placements = {Placement::shard(0)};
    problem.parameters.push_back(parameter);
  };
  add("square", {8, 64, 64}, Algorithm::kNorMuon);
  add("tall", {4, 256, 64}, Algorithm::kMuon);
  add("gain", {64}, Algorithm::kAdamW);

  constexpr int32_t kMatrices = 12;
  Plan& plan = sample.plan;
  for (int32_t j = 0; j < kMatrices; ++j) {
    plan.owner.push_back(j % options.ranks);
    plan.wave.push_back(j % options.waves);
  }
  plan.waves.resize(static_cast<size_t>(options.waves));
  plan.hash = 0xabcdef;

  PlanSummary& summary = sample.summary;
  for (int32_t r = 0; r < options.ranks; ++r) {
    PlanSummary::Rank rank;
    rank.compute_ns = (r + 1) * 80'000;
    rank.exchange_ns = (r + 1) * 20'000;
    rank.bytes_sent = 3 << 20;
    rank.scratch_bytes = 5 << 20;
    rank.matrices = 3;
    summary.ranks.push_back(rank);
  }
  for (int32_t k = 0; k < options.waves; ++k) {
    PlanSummary::WaveTotal wave;
    wave.matrices = kMatrices / options.waves;
    wave.owners = options.ranks;
    wave.bytes_in = 1 << 20;
    wave.bytes_out = 2 << 20;
    wave.in_ns = 10'000;
    wave.compute_ns = 300'000;
    wave.out_ns = 20'000;
    summary.waves.push_back(wave);
  }
  summary.collectives = 2 * options.waves;
  summary.rounds = options.waves;
  summary.slowest_ns = options.ranks * 100'000;
  summary.mean_ns = (options.ranks + 1) * 50'000;
  summary.largest_matrix_ns = 40'000;
  summary.predicted_ns = options.ranks * 90'000;
  summary.scratch_bytes_max = 5 << 20;
  summary.bytes_sent_max = 3 << 20;
  summary.bytes_sent_total = options.ranks * int64_t{3 << 20};
  sample.cost.device = "test-device";
  return sample;
}

}  // namespace muster::plan_text
