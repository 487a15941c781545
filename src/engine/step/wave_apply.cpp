// Updates to weights, and the same piece by piece where statistics are collected.
#include <algorithm>

#include "base/offset_pointer.h"
#include "engine/step/wave_executor.h"
#include "kernels/step_scale.h"

namespace muster::engine {

namespace {

constexpr int64_t kPiece = ParameterStatsCollector::kPieceElements;

// Some rows of a block.
StridedBlock rows_of(const StridedBlock& block, int64_t row, int64_t rows) {
  StridedBlock part = block;
  part.rows = rows;
  part.first += row * block.first_stride;
  part.second += row * block.second_stride;
  part.index += row * block.index_stride;
  return part;
}

}  // namespace

void WaveExecutor::apply(std::span<const Placed<ApplyStep>> steps) {
  if (steps.empty()) return;
  const auto timed = context_.timer.time(Stage::kApply);
  if (step_.stats != nullptr) return apply_watched(steps);
  std::vector<kernels::ApplyBlock> blocks;
  for (size_t i = 0; i < steps.size(); ++i) {
    const int32_t p = steps[i].step->parameter;
    blocks.push_back(apply_block(steps[i]));
    if (i + 1 < steps.size() && same_call(p, steps[i + 1].step->parameter)) continue;
    kernels_.apply(apply_options(p), blocks);
    ++stats().kernels;
    blocks.clear();
  }
}

void WaveExecutor::apply_watched(std::span<const Placed<ApplyStep>> steps) {
  for (const auto& [step, updates] : steps) {
    const int32_t p = step->parameter;
    const bool counts = context_.catalog.class_at(step->matrix).weights_back || context_.state.is_primary(p);
    const StridedBlock& block = step->block;
    const int64_t height = std::max<int64_t>(1, kPiece / std::max<int64_t>(block.columns, 1));
    for (int64_t row = 0; row < block.rows; row += height) {
      const ApplyStep piece{p, step->matrix, rows_of(block, row, std::min(height, block.rows - row))};
      const kernels::ApplyBlock update = apply_block({&piece, updates});
      const auto apply = [&] { kernels_.apply(apply_options(p), {&update, 1}); };
      ++stats().kernels;
      if (!counts) {
        apply();
        continue;
      }
      step_.stats->watch(
          {.parameter = p,
           .form = context_.memory[p].form,
           .block = {.rows = update.rows, .columns = update.columns, .weight = update.weight, .active = update.active}},
          apply);
    }
  }
}

kernels::ApplyOptions WaveExecutor::apply_options(int32_t parameter) {
  return {.wire = context_.problem.wire,
          .form = context_.memory[parameter].form,
          .decay = group(parameter).decay,
          .rounding = rounding(),
          .rates = rates(parameter)};
}

kernels::ApplyBlock WaveExecutor::apply_block(const Placed<ApplyStep>& placed) const {
  const auto& [step, updates] = placed;
  const StridedBlock& b = step->block;
  return {.rows = b.rows,
          .columns = b.columns,
          .update = updates + b.second * wire_bytes_,
          .update_stride = b.second_stride,
          .weight = weight(step->parameter, b),
          .scale = scale(step->matrix),
          .multiplier = parameter(step->parameter).multiplier,
          .active = active(step->parameter),
          .row_factors = row_factors(step->parameter)};
}

kernels::WeightBlock WaveExecutor::weight(int32_t parameter, const StridedBlock& block) const {
  const ParameterMemory& m = context_.memory[parameter];
  return {.data = base::offset_by(m.weight, block.first, kernels::weight_bytes(m.form)),
          .extra = base::offset_by(m.extra, block.first, kernels::extra_bytes(m.form)),
          .stride = block.first_stride,
          .stream = rounding_streams_[parameter],
          .first_index = block.index,
          .row_index_stride = block.index_stride};
}

double WaveExecutor::scale(int32_t matrix) const {
  const plan::Catalog& catalog = context_.catalog;
  const int32_t p = catalog.parameter_of(matrix);
  const Shape& shape = parameter(p).shape;
  int64_t rows = catalog.rows(matrix);
  int64_t columns = catalog.columns(matrix);
  if (parameter(p).scale_shape == ScaleShape::kParameter && shape.size() > 1) {
    const bool flatten = parameter(p).matrices.flatten;
    rows = flatten ? shape[0] : shape[shape.size() - 2];
    columns = flatten ? element_count(shape) / std::max<int64_t>(shape[0], 1) : shape.back();
  }
  const StepScale kind = group(p).scale;
  return parameter(p).output_dim == 0 ? kernels::step_scale(kind, rows, columns)
                                      : kernels::step_scale(kind, columns, rows);
}

}  // namespace muster::engine
