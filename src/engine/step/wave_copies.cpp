// What a wave copies and sums on one rank: between shards, messages and assembled matrices.
#include <iterator>
#include <map>

#include "base/offset_pointer.h"
#include "engine/step/wave_executor.h"

namespace muster::engine {

void WaveExecutor::clear(size_t w, std::span<const Span> spans) {
  constexpr int64_t kWidth = 2;  // divides the size of every dtype
  std::vector<kernels::CopyBlock> blocks;
  for (const Span& span : spans) {
    const int64_t columns = span.bytes / kWidth;
    blocks.push_back({.rows = 1,
                      .columns = columns,
                      .from = nullptr,
                      .from_stride = columns,
                      .to = part(w) + span.offset,
                      .to_stride = columns});
  }
  if (!blocks.empty()) kernels_.copy(kWidth, blocks);
}

namespace {

std::vector<kernels::CopyBlock> copies_within(std::byte* part, std::span<const CopyStep> steps, int64_t width) {
  std::vector<kernels::CopyBlock> blocks;
  for (const CopyStep& step : steps) {
    blocks.push_back({.rows = step.rows,
                      .columns = step.columns,
                      .from = part + step.from * width,
                      .from_stride = step.from_stride,
                      .to = part + step.to * width,
                      .to_stride = step.to_stride});
  }
  return blocks;
}

// Between a shard, where the block says, and its dense copy in a message.
kernels::CopyBlock to_message(const Block& block, const void* shard, void* staged) {
  return {.rows = block.rows,
          .columns = block.columns,
          .from = shard,
          .from_stride = block.first_stride,
          .to = staged,
          .to_stride = block.columns};
}
kernels::CopyBlock from_message(const Block& block, const void* staged, void* shard) {
  return {.rows = block.rows,
          .columns = block.columns,
          .from = staged,
          .from_stride = block.columns,
          .to = shard,
          .to_stride = block.first_stride};
}

}  // namespace

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
    blocks.push_back({.rows = 1,
                      .columns = step.count,
                      .from = to_part ? kept : staged,
                      .from_stride = step.count,
                      .to = to_part ? staged : kept,
                      .to_stride = step.count});
  }
  if (!blocks.empty()) kernels_.copy(sizeof(float), blocks);
}

void WaveExecutor::copy_gradients(size_t w, std::span<const GradientStep> steps) {
  for (const int64_t width : {2, 4}) {
    std::vector<kernels::CopyBlock> blocks;
    for (const GradientStep& step : steps) {
      if (byte_size(parameter(step.parameter).grad_dtype) != width) continue;
      const void* const shard = base::offset_by(step_.gradients[step.parameter], step.block.first, width);
      blocks.push_back(to_message(step.block, shard, part(w) + step.staged));
    }
    if (!blocks.empty()) kernels_.copy(width, blocks);
  }
}

void WaveExecutor::copy_weights(size_t w, std::span<const WeightStep> steps, Direction direction) {
  for (const int64_t width : {2, 4}) {
    std::vector<kernels::CopyBlock> blocks;
    for (const WeightStep& step : steps) {
      const ParameterMemory& memory = context_.memory[step.parameter];
      if (weight_bytes(memory.form) != width) continue;
      void* const shard = base::offset_by(memory.weight, step.block.first, width);
      std::byte* const staged = part(w) + step.staged;
      blocks.push_back(direction == Direction::kToPart ? to_message(step.block, shard, staged)
                                                       : from_message(step.block, staged, shard));
    }
    if (!blocks.empty()) kernels_.copy(width, blocks);
  }
}

// In the order of the ranks, in f32: the same bits on every owner.
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
    const Block& b = step.block;
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
