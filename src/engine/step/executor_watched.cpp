// Updates of weights that are watched for statistics: the same bits as in executor.cpp, piece by piece.
#include <algorithm>

#include "base/offset_pointer.h"
#include "engine/state/state.h"
#include "engine/step/executor.h"

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

void Executor::apply_watched(const Run& run, std::span<const Placed<ApplyStep>> steps) {
  for (const auto& [step, base] : steps) {
    const int32_t p = step->parameter;
    const bool counts = catalog_.class_at(step->matrix).weights_back || state_.is_primary(p);
    const StridedBlock& block = step->block;
    const int64_t height = std::max<int64_t>(1, kPiece / std::max<int64_t>(block.columns, 1));
    for (int64_t row = 0; row < block.rows; row += height) {
      const ApplyStep piece{p, step->matrix, rows_of(block, row, std::min(height, block.rows - row))};
      const kernels::ApplyBlock update = apply_block(run, {&piece, base});
      const auto apply = [&] { kernels_.apply(apply_options(run, p), {&update, 1}); };
      ++recorder_.stats.kernels;
      if (!counts) {
        apply();
        continue;
      }
      run.input.stats->watch({p, memory_[p].form, {update.rows, update.columns, update.weight, nullptr, update.active}},
                             apply);
    }
  }
}

void Executor::change_watched(const Run& run, const RangeStep& step, const kernels::ElementRange& range) {
  const int32_t p = step.parameter;
  for (int64_t first = 0; first < step.count; first += kPiece) {
    kernels::ElementRange piece = range;
    piece.count = std::min(kPiece, step.count - first);
    piece.grad = base::offset_by(range.grad, first, byte_size(gradient_dtype(step)));
    piece.first = range.first + first;
    if (range.second != nullptr) piece.second = range.second + first;
    piece.weight = weight(p, step.first + first, piece.count, step.index + first, 0);
    run.input.stats->watch({p, memory_[p].form, {1, piece.count, piece.weight, nullptr, piece.active}}, [&] {
      change(run, step, {&piece, 1});
    });
  }
}

}  // namespace muster::engine
