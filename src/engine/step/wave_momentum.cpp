// Momentum: gradients to updates, before they travel or where they are averaged.
#include "base/offset_pointer.h"
#include "engine/step/wave_executor.h"

namespace muster::engine {

kernels::MomentumOptions WaveExecutor::momentum_options(int32_t parameter, Dtype gradient) {
  return {.grad = gradient,
          .momentum = momentum_,
          .wire = context_.problem.wire,
          .form = group(parameter).momentum_form,
          .nesterov = group(parameter).nesterov,
          .grad_scale = step_.grad_scale,
          .clip = step_.clip,
          .rates = rates(parameter)};
}

// Neighbouring steps of one group and gradient dtype in one call.
void WaveExecutor::pack(std::span<const Placed<PackStep>> steps) {
  std::vector<kernels::MomentumBlock> blocks;
  blocks.reserve(steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const auto& [step, updates] = steps[i];
    const int32_t p = step->parameter;
    const Dtype dtype = parameter(p).grad_dtype;
    const State::MomentumRows momentum = context_.state.momentum(p, step->block, step->momentum);
    const bool travels = step->block.second != PackStep::kNowhere;
    blocks.push_back({.rows = step->block.rows,
                      .columns = step->block.columns,
                      .grad = base::offset_by(step_.gradients[p], step->block.first, byte_size(dtype)),
                      .grad_stride = step->block.first_stride,
                      .momentum = momentum.data,
                      .momentum_stride = momentum.stride,
                      .update = travels ? updates + step->block.second * wire_bytes_ : nullptr,
                      .update_stride = step->block.second_stride,
                      .active = active(p)});
    if (i + 1 < steps.size()) {
      const int32_t next = steps[i + 1].step->parameter;
      if (&group(next) == &group(p) && parameter(next).grad_dtype == dtype) continue;
    }
    kernels_.momentum_pack(momentum_options(p, dtype), blocks);
    ++stats().kernels;
    blocks.clear();
  }
}

void WaveExecutor::momentum_of_averages(size_t w) {
  const std::vector<OwnerMomentumStep>& steps = wave(w).owner_momentum;
  if (steps.empty()) return;
  const auto timed = time(Stage::kPack, w);
  std::vector<kernels::MomentumBlock> blocks;
  for (size_t i = 0; i < steps.size(); ++i) {
    const OwnerMomentumStep& step = steps[i];
    blocks.push_back({.rows = 1,
                      .columns = step.count,
                      .grad = part_f32(w) + step.sum,
                      .grad_stride = step.count,
                      .momentum = context_.state.keeps_momentum(step.parameter)
                                      ? context_.state.owner_momentum(step.momentum)
                                      : nullptr,
                      .momentum_stride = step.count,
                      .update = part(w) + step.assembled * wire_bytes_,
                      .update_stride = step.count,
                      .active = active(step.parameter)});
    if (i + 1 < steps.size() && &group(steps[i + 1].parameter) == &group(step.parameter)) continue;
    kernels_.momentum_pack(momentum_options(step.parameter, Dtype::kF32), blocks);
    ++stats().kernels;
    blocks.clear();
  }
}

}  // namespace muster::engine
