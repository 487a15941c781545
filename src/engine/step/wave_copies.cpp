// What a wave copies and sums on one rank: between shards, messages and assembled matrices.
#include <iterator>
#include <map>

#include "base/offset_pointer.h"
#include "engine/step/wave_executor.h"

namespace muster::engine {

namespace {

// Rows `stride` elements apart.
struct Rows {
  void* data;  // null: zeros
  int64_t stride;
};

kernels::CopyBlock copy_rows(int64_t rows, int64_t columns, Rows from, Rows to) {
  return {.rows = rows,
          .columns = columns,
          .from = from.data,
          .from_stride = from.stride,
          .to = to.data,
          .to_stride = to.stride};
}

std::vector<kernels::CopyBlock> copies_within(std::byte* part, std::span<const CopyStep> steps, int64_t width) {
  std::vector<kernels::CopyBlock> blocks;
  for (const CopyStep& step : steps) {
    blocks.push_back(copy_rows(step.rows, step.columns, {part + step.from * width, step.from_stride},
                               {part + step.to * width, step.to_stride}));
  }
  return blocks;
}

}  // namespace

void WaveExecutor::clear(size_t w, std::span<const ByteRange> spans) {
  constexpr int64_t kWidth = 2;  // divides the size of every dtype
  std::vector<kernels::CopyBlock> blocks;
  for (const ByteRange& span : spans) {
    const int64_t columns = span.bytes / kWidth;
    blocks.push_back(copy_rows(1, columns, {nullptr, columns}, {part(w) + span.offset, columns}));
  }
  if (!blocks.empty()) kernels_.copy(kWidth, blocks);
}

void WaveExecutor::copy(size_t w, std::span<const CopyStep> steps) {
  const std::vector<kernels::CopyBlock> blocks = copies_within(part(w), steps, wire_bytes_);
  if (!blocks.empty()) kernels_.copy(wire_bytes_, blocks);
}

void WaveExecutor::copy_lines(size_t w, std::span<const CopyStep> steps) {
  const std::vector<kernels::CopyBlock> blocks = copies_within(part(w), steps, sizeof(float));
  if (!blocks.empty()) kernels_.copy(sizeof(float), blocks);
}

void WaveExecutor::copy_lines(size_t w, std::span<const LineStep> steps, Direction direction) {
  std::vector<kernels::CopyBlock> blocks;
  for (const LineStep& step : steps) {
    float* const kept = context_.state.variance(step.parameter, step.held);
    float* const staged = part_f32(w) + step.staged;
    const bool to_part = direction == Direction::kToPart;
    blocks.push_back(
        copy_rows(1, step.count, {to_part ? kept : staged, step.count}, {to_part ? staged : kept, step.count}));
  }
  if (!blocks.empty()) kernels_.copy(sizeof(float), blocks);
}

void WaveExecutor::copy_gradients(size_t w, std::span<const GradientStep> steps) {
  for (const int64_t width : {2, 4}) {
    std::vector<kernels::CopyBlock> blocks;
    for (const GradientStep& step : steps) {
      if (byte_size(parameter(step.parameter).grad_dtype) != width) continue;
      const StridedBlock& b = step.block;
      void* const shard = base::offset_by(step_.gradients[step.parameter], b.first, width);
      blocks.push_back(copy_rows(b.rows, b.columns, {shard, b.first_stride}, {part(w) + step.staged, b.columns}));
    }
    if (!blocks.empty()) kernels_.copy(width, blocks);
  }
}

void WaveExecutor::copy_weights(size_t w, std::span<const WeightStep> steps, Direction direction) {
  for (const int64_t width : {2, 4}) {
    std::vector<kernels::CopyBlock> blocks;
    for (const WeightStep& step : steps) {
      const ParameterMemory& memory = context_.memory[step.parameter];
      if (kernels::weight_bytes(memory.form) != width) continue;
      const StridedBlock& b = step.block;
      const Rows shard{base::offset_by(memory.weight, b.first, width), b.first_stride};
      const Rows staged{part(w) + step.staged, b.columns};
      const bool to_part = direction == Direction::kToPart;
      blocks.push_back(copy_rows(b.rows, b.columns, to_part ? shard : staged, to_part ? staged : shard));
    }
    if (!blocks.empty()) kernels_.copy(width, blocks);
  }
}

// Sums in the order of the ranks, in f32: the same bits on every owner.
void WaveExecutor::sum_replicas(size_t w) {
  if (wave(w).sum.empty()) return;
  const auto timed = time(Stage::kAssemble, w, "replicas");
  clear(w, wave(w).sums);
  // Blocks of one call must not intersect.
  std::vector<kernels::AddBlock> blocks;
  std::map<int64_t, int64_t> taken;  // elements, by their first
  Dtype dtype = Dtype::kF32;
  const auto flush = [&] {
    if (!blocks.empty()) kernels_.add(dtype, blocks);
    blocks.clear();
    taken.clear();
  };
  for (const SumStep& step : wave(w).sum) {
    const Dtype own = parameter(step.parameter).grad_dtype;
    const StridedBlock& b = step.block;
    if (b.elements() == 0) continue;
    const int64_t end = b.second + (b.rows - 1) * b.second_stride + b.columns;
    const auto after = taken.lower_bound(end);
    const bool intersects = after != taken.begin() && std::prev(after)->second > b.second;
    if (own != dtype || intersects) flush();
    dtype = own;
    taken[b.second] = end;
    const bool mine = step.staged < 0;
    const void* const shard =
        mine ? base::offset_by(step_.gradients[step.parameter], b.first, byte_size(own)) : nullptr;
    blocks.push_back({.rows = b.rows,
                      .columns = b.columns,
                      .from = mine ? shard : part(w) + step.staged,
                      .from_stride = mine ? b.first_stride : b.columns,
                      .to = part_f32(w) + b.second,
                      .to_stride = b.second_stride});
  }
  flush();
  std::vector<kernels::DivideRange> ranges;
  for (const AverageStep& step : wave(w).average) {
    ranges.push_back({step.count, part_f32(w) + step.sum, static_cast<float>(step.replicas)});
  }
  if (!ranges.empty()) kernels_.divide(ranges);
}

}  // namespace muster::engine
