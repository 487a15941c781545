// Row factors of parameters that sit a step out. For the others they are part of the update.
#include "engine/step/wave_executor.h"

namespace muster::engine {

kernels::RowFactors WaveExecutor::row_factors(int32_t parameter) const {
  return context_.row_scalings.of(static_cast<size_t>(parameter), step_.row_factors.data());
}

void WaveExecutor::scale_rows(const StepInput& input, const std::vector<bool>& parameters) {
  start(input);
  const bool travels = context_.row_scalings.any_returns_weights(parameters);
  for (size_t w = 0; w < waves(); ++w) {
    scale_rows(w);
    if (!travels) continue;
    start_out(w);
    wait(exchanges_[w].out, w, Stage::kWaitOut, "out");
    const auto timed = time(Stage::kApply, w, "weights");
    copy_weights(w, wave(w).weights_in, Direction::kFromPart);
  }
}

void WaveExecutor::count_row_traffic(const StepInput& input, const std::vector<bool>& parameters) {
  if (!context_.row_scalings.any_returns_weights(parameters)) return;
  for (const WaveProgram& wave : input.program->waves) count_traffic(wave.send_out, wave.receive_out);
}

void WaveExecutor::scale_rows(size_t w) {
  if (step_.row_factors.empty()) return;
  const auto timed = time(Stage::kApply, w, "rows");
  std::vector<kernels::ApplyBlock> blocks;
  WeightForm form = WeightForm::kF32;
  const auto flush = [&] {
    if (blocks.empty()) return;
    kernels_.apply({.form = form, .rounding = rounding()}, blocks);
    ++stats().kernels;
    blocks.clear();
  };
  const auto add = [&](int32_t p, const StridedBlock& block) {
    if (!context_.row_scalings.scales(static_cast<size_t>(p))) return;
    if (context_.memory[p].form != form) flush();
    form = context_.memory[p].form;
    blocks.push_back({.rows = block.rows,
                      .columns = block.columns,
                      .update_stride = block.columns,
                      .weight = weight(p, block),
                      .active = step_.sitting == nullptr ? nullptr : step_.sitting + p,
                      .row_factors = row_factors(p)});
  };
  const auto add_ranges = [&](std::span<const RangeStep> steps) {
    for (const RangeStep& step : steps) {
      add(step.parameter, {.rows = 1, .columns = step.count, .first = step.first, .index = step.index});
    }
  };
  const auto add_applied = [&](std::span<const ApplyStep> steps) {
    for (const ApplyStep& step : steps) add(step.parameter, step.block);
  };
  add_ranges(wave(w).ranges);
  add_ranges(wave(w).summed_ranges);
  for (const HomeBatch& batch : wave(w).home) {
    for (const HomeMatrix& matrix : batch.matrices) add_applied(matrix.apply);
  }
  add_applied(wave(w).apply_first);
  add_applied(wave(w).apply);
  flush();
}

}  // namespace muster::engine
