#include "engine/state/rule_state.h"

#include <fmt/format.h>

#include "base/alignment.h"
#include "engine/state/state.h"
#include "muster/error.h"

namespace muster::engine {

namespace {

constexpr int64_t kAlignElements = 16;  // entries start on a cache line

}  // namespace

Shape entry_shape(RuleStateShape shape, int64_t rows, int64_t columns) {
  switch (shape) {
    case RuleStateShape::kRows:
      return {rows};
    case RuleStateShape::kColumns:
      return {columns};
    case RuleStateShape::kMatrix:
      return {rows, columns};
    case RuleStateShape::kRowsByRows:
      return {rows, rows};
    case RuleStateShape::kColumnsByColumns:
      return {columns, columns};
  }
  throw Internal(fmt::format("not a shape of rule state: {}", static_cast<int>(shape)));
}

RuleStateLayout rule_state_layout(std::span<const RuleState> entries, int64_t rows, int64_t columns) {
  RuleStateLayout layout;
  for (const RuleState& entry : entries) {
    layout.first.push_back(layout.elements);
    layout.elements += base::round_up(element_count(entry_shape(entry.shape, rows, columns)), kAlignElements);
  }
  return layout;
}

std::vector<std::vector<RuleState>> rule_entries(const Problem& problem, const OptimizerOptions& options,
                                                 std::span<const ParameterMemory> memory) {
  std::vector<std::vector<RuleState>> entries(problem.parameters.size());
  for (size_t p = 0; p < entries.size(); ++p) {
    if (problem.parameters[p].algorithm != Algorithm::kRule) continue;
    entries[p] = options.rules[static_cast<size_t>(memory[p].group)]->state();
  }
  return entries;
}

int64_t State::reserve_rule_state(int32_t matrix) {
  const auto [place, is_new] = rule_places_.emplace(matrix, rule_.elements);
  if (!is_new) return place->second;
  require_open();
  const int32_t p = catalog_.parameter_of(matrix);
  const std::vector<RuleState>& entries = rule_entries_[p];
  const plan::Matrix& m = catalog_.class_at(matrix).matrix;
  const RuleStateLayout layout = rule_state_layout(entries, m.rows, m.columns);
  rule_parts_[p].resize(entries.size());
  for (size_t e = 0; e < entries.size(); ++e) {
    int64_t index = 0;  // in the tensor, the arrays of a parameter's matrices are consecutive
    for (int32_t j = catalog_.first_matrix(p); j < matrix; ++j) {
      index += element_count(entry_shape(entries[e].shape, catalog_.rows(j), catalog_.columns(j)));
    }
    const int64_t count = element_count(entry_shape(entries[e].shape, m.rows, m.columns));
    rule_parts_[p][e].push_back({{.rows = 1,
                                  .columns = count,
                                  .first = place->second + layout.first[e],
                                  .first_stride = count,
                                  .index = index,
                                  .index_stride = count},
                                 true});
  }
  rule_.elements += layout.elements;
  return place->second;
}

// An entry of one matrix has its own shape. Those of several matrices of one shape have their number in front; of
// different shapes, they are end to end.
std::vector<StateShard> State::rule_shards(int32_t p) const {
  std::vector<StateShard> out;
  const int32_t first = catalog_.first_matrix(p);
  for (size_t e = 0; e < rule_entries_[p].size(); ++e) {
    const RuleState& entry = rule_entries_[p][e];
    const Shape one = entry_shape(entry.shape, catalog_.rows(first), catalog_.columns(first));
    const int32_t matrices = catalog_.grid(p).count();
    bool alike = true;
    int64_t elements = 0;
    for (int32_t j = first; j < first + matrices; ++j) {
      const Shape shape = entry_shape(entry.shape, catalog_.rows(j), catalog_.columns(j));
      alike = alike && shape == one;
      elements += element_count(shape);
    }
    Shape shape = alike ? one : Shape{elements};
    if (alike && matrices > 1) shape.insert(shape.begin(), matrices);
    const std::string name = fmt::format("{}:rule.{}", catalog_.problem().parameters[p].name, entry.name);
    const Parts parts = rule_parts_[p].empty() ? Parts{} : rule_parts_[p][e];
    out.push_back(make_shard({name, StateType::kF32, std::move(shape)}, {rule_.memory.data(), parts}));
  }
  return out;
}

}  // namespace muster::engine
