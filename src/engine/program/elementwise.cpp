#include "engine/program/elementwise.h"

#include <algorithm>

namespace muster::engine {

namespace {

std::vector<ShardRange> local_elementwise(const ProgramInput& input) {
  std::vector<ShardRange> shards;
  for (int32_t p = 0; p < static_cast<int32_t>(input.catalog.problem().parameters.size()); ++p) {
    if (!input.is_active(p) || is_matrix_algorithm(input.parameter(p).algorithm)) continue;
    if (!input.catalog.updated_in_place(p)) continue;
    const layout::Partition& partition = input.catalog.partition(p);
    const int32_t position = partition.position_of(input.rank);
    if (position < 0) continue;
    const int64_t elements = partition.local_elements(position);
    if (elements > 0) shards.push_back({.parameter = p, .first = 0, .count = elements});
  }
  return shards;
}

}  // namespace

void add_range_steps(const ShardRange& range, int64_t sum, State& state, WaveProgram& wave) {
  std::vector<RangeStep>& steps = sum < 0 ? wave.ranges : wave.summed_ranges;
  for (const StridedBlock& block : state.shard_blocks(range.parameter)) {
    for (int64_t i = 0; i < block.rows; ++i) {
      const int64_t row = block.first + i * block.first_stride;
      const int64_t begin = std::max(row, range.first);
      const int64_t end = std::min(row + block.columns, range.first + range.count);
      if (begin >= end) continue;
      RangeStep step{.parameter = range.parameter, .first = begin, .count = end - begin};
      step.index = block.index + i * block.index_stride + begin - row;
      step.moments = state.reserve_moments(step.parameter, step.first, step.count, step.index);
      if (sum >= 0) step.sum = sum + begin - range.first;
      steps.push_back(step);
    }
  }
}

void spread_local_elementwise(const ProgramInput& input, State& state, std::vector<WaveProgram>& waves) {
  const std::vector<ShardRange> shards = local_elementwise(input);
  int64_t total = 0;
  for (const ShardRange& shard : shards) total += shard.count;
  const int64_t last = std::ssize(waves) - 1;
  int64_t before = 0;
  for (const ShardRange& shard : shards) {
    int64_t wave = std::min(last, before / (total / std::ssize(waves) + 1));
    if (input.plan.elementwise == ElementwiseOrder::kFirst) wave = 0;
    if (input.plan.elementwise == ElementwiseOrder::kLast) wave = last;
    add_range_steps(shard, -1, state, waves[wave]);
    before += shard.count;
  }
}

}  // namespace muster::engine
