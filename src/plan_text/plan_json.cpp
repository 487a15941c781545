#include "plan_text/plan_json.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "plan/catalog.h"
#include "plan_text/explain_text.h"
#include "plan_text/text.h"
#include "plan_text/words.h"

namespace muster::plan_text {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kTableMax = 64;

double milliseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e6; }

Json shapes_json(const std::vector<ShapeCount>& shapes) {
  Json list = Json::array();
  for (const ShapeCount& shape : shapes) {
    list.push_back({{"count", shape.count}, {"rows", shape.rows}, {"columns", shape.columns}});
  }
  return list;
}

Json wave_table(const PlanReport& report) {
  const auto& waves = report.summary.waves;
  const auto shapes = count_shapes(plan::Catalog(report.problem), report.plan.wave, static_cast<int32_t>(waves.size()));
  Json list = Json::array();
  for (size_t k = 0; k < waves.size(); ++k) {
    const PlanSummary::WaveTotal& wave = waves[k];
    list.push_back({{"transport", word(report.plan.waves.at(k).transport)},
                    {"matrices", wave.matrices},
                    {"zero_matrices", wave.zeros},
                    {"shapes", shapes_json(shapes[k])},
                    {"owners", wave.owners},
                    {"collectives", wave.collectives},
                    {"bytes_in", wave.bytes_in},
                    {"bytes_out", wave.bytes_out},
                    {"padding_bytes", wave.padding_bytes},
                    {"in_ms", milliseconds(wave.in_ns)},
                    {"compute_ms", milliseconds(wave.compute_ns)},
                    {"out_ms", milliseconds(wave.out_ns)}});
  }
  return list;
}

Json rank_table(const PlanSummary& summary) {
  Json list = Json::array();
  for (size_t i = 0; i < summary.ranks.size(); ++i) {
    const PlanSummary::Rank& rank = summary.ranks[i];
    list.push_back({{"rank", i},
                    {"compute_ms", milliseconds(rank.compute_ns)},
                    {"exchange_ms", milliseconds(rank.exchange_ns)},
                    {"matrices", rank.matrices},
                    {"elements", rank.elements},
                    {"bytes_sent", rank.bytes_sent},
                    {"bytes_received", rank.bytes_received},
                    {"messages_sent", rank.messages_sent},
                    {"scratch_bytes", rank.scratch_bytes}});
  }
  return list;
}

Json matrix_json(const PlanReport& report, const plan::MatrixExplanation& matrix) {
  Json candidates = Json::array();
  for (const plan::Candidate& candidate : matrix.candidates) {
    candidates.push_back({{"rank", candidate.rank},
                          {"held_elements", candidate.held_elements},
                          {"orthogonalize_ns", candidate.orthogonalize_ns},
                          {"normalize_ns", candidate.normalize_ns},
                          {"exchange_ns", candidate.exchange_ns},
                          {"start_ns", candidate.start_ns},
                          {"cost_ns", candidate.cost_ns()},
                          {"load_ns", candidate.load_ns}});
  }
  Json json = {{"index", matrix.index},       {"rows", matrix.rows},
               {"columns", matrix.columns},   {"normuon", matrix.normuon},
               {"wave", matrix.wave},         {"holders", matrix.holders},
               {"replicas", matrix.replicas}, {"each_replica", matrix.each_replica}};
  if (!matrix.candidates.empty()) {
    json["owner"] = matrix.candidates.front().rank;
    json["reason"] = reason(report, matrix);
  }
  json["candidates"] = std::move(candidates);
  return json;
}

Json explanation_json(const PlanReport& report, const plan::Explanation& explanation) {
  const Parameter& parameter = report.problem.parameters.at(static_cast<size_t>(explanation.parameter));
  const Mesh& mesh = report.problem.meshes.at(static_cast<size_t>(parameter.layout.mesh));
  Json json = {{"parameter", parameter.name},    {"shape", parameter.shape},
               {"dtype", word(parameter.dtype)}, {"algorithm", word(parameter.algorithm)},
               {"mesh", mesh_words(mesh)},       {"layout", layout_words(mesh, parameter.layout)}};
  if (is_matrix_algorithm(parameter.algorithm)) {
    json["matrix_count"] = explanation.matrix_count;
    json["matrices"] = Json::array();
    for (const auto& matrix : explanation.matrices) json["matrices"].push_back(matrix_json(report, matrix));
  } else {
    json["reason"] = updaters_text(report, explanation);
    json["updaters"] = Json::array();
    for (const auto& [rank, elements] : explanation.updaters) {
      json["updaters"].push_back({{"rank", rank}, {"elements", elements}});
    }
  }
  return json;
}

Json parameter_table(const std::vector<ParameterRow>& rows) {
  Json list = Json::array();
  for (const ParameterRow& row : rows) {
    list.push_back({{"parameter", row.name},
                    {"shape", row.shape},
                    {"elements", row.elements},
                    {"dtype", word(row.dtype)},
                    {"layout", row.layout},
                    {"algorithm", word(row.algorithm)},
                    {"matrices", row.matrices},
                    {"update", word(row.update)},
                    {"owners", row.owners}});
  }
  return list;
}

// Names come from files and need not be UTF-8; a report must not fail on them.
std::string compact(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// One line a key and a line a row of a table: neither a wall of text nor a wall of lines.
std::string lines(const Json& object) {
  std::string text;
  for (const auto& [key, value] : object.items()) {
    text += fmt::format("{}  \"{}\": ", text.empty() ? "{\n" : ",\n", key);
    if (!value.is_array() || value.empty()) {
      text += compact(value);
      continue;
    }
    for (const Json& row : value) text += fmt::format("{}    {}", &row == &value.front() ? "[\n" : ",\n", compact(row));
    text += "\n  ]";
  }
  return text + "\n}\n";
}

}  // namespace

std::string plan_json(const PlanReport& report, const PlanDetails& details) {
  const PlanSummary& summary = report.summary;
  Json json = {{"model", report.problem.model},
               {"ranks", report.problem.ranks},
               {"strategy", name(report.plan.strategy)},
               {"waves", summary.waves.size()},
               {"in_flight", report.plan.in_flight},
               {"collectives", summary.collectives},
               {"rounds", summary.rounds},
               {"bytes_sent_max", summary.bytes_sent_max},
               {"bytes_sent_total", summary.bytes_sent_total},
               {"padding_bytes", summary.padding_bytes},
               {"imbalance", summary.imbalance()},
               {"over_bound", summary.over_bound()},
               {"scratch_bytes_max", summary.scratch_bytes_max},
               {"scratch_cap_bytes", report.plan.scratch_cap},
               {"scratch_cap_raised", report.plan.scratch_cap_raised},
               {"predicted_ms", milliseconds(summary.predicted_ns)},
               {"plan_ms", milliseconds(report.plan_ns)},
               {"hash", hash_text(report.plan.hash)},
               {"slowest_rank_ms", milliseconds(summary.slowest_ns)},
               {"mean_rank_ms", milliseconds(summary.mean_ns)},
               {"largest_matrix_ms", milliseconds(summary.largest_matrix_ns)},
               {"parameters", report.problem.parameters.size()},
               {"matrices", report.plan.owner.size()},
               {"zero_matrices", zero_matrix_count(summary)},
               {"repeated_matrices", repeated_matrix_count(report.plan)},
               {"elements", total_elements(report.problem)},
               {"cost", report.cost.device}};
  if (summary.waves.size() <= kTableMax) json["wave_table"] = wave_table(report);
  if (summary.ranks.size() <= kTableMax) json["rank_table"] = rank_table(summary);
  if (details.parameters != nullptr) json["parameter_table"] = parameter_table(*details.parameters);
  if (details.explanation != nullptr) json["explanation"] = explanation_json(report, *details.explanation);
  return lines(json);
}

}  // namespace muster::plan_text
