// AdamW and Lion, and the same piece by piece where statistics are collected.
#include <algorithm>

#include "base/offset_pointer.h"
#include "engine/step/wave_executor.h"

namespace muster::engine {

void WaveExecutor::update_elements(size_t w, std::span<const RangeStep> steps) {
  if (steps.empty()) return;
  const auto timed = time(Stage::kElementwise, w);
  State& state = context_.state;
  std::vector<kernels::ElementRange> ranges;
  for (size_t i = 0; i < steps.size(); ++i) {
    const RangeStep& step = steps[i];
    const bool counts = !state.holders_keep(step.parameter) || state.is_primary(step.parameter);
    if (step_.stats != nullptr && counts) {
      update_watched(step, element_range(w, step));
      continue;
    }
    ranges.push_back(element_range(w, step));
    if (step_.stats == nullptr && i + 1 < steps.size() && same_call(step, steps[i + 1])) continue;
    update_ranges(step, ranges);
    ranges.clear();
  }
}

// They differ in nothing that a kernel takes as an option.
bool WaveExecutor::same_call(const RangeStep& step, const RangeStep& other) const {
  const int32_t p = step.parameter;
  const int32_t q = other.parameter;
  const bool same_updates = context_.device != nullptr || context_.state.updates()[p] == context_.state.updates()[q];
  return same_updates && same_call(p, q) && gradient_dtype(step) == gradient_dtype(other) &&
         parameter(p).algorithm == parameter(q).algorithm;
}

void WaveExecutor::update_watched(const RangeStep& step, const kernels::ElementRange& range) {
  constexpr int64_t kPiece = ParameterStatsCollector::kPieceElements;
  const int32_t p = step.parameter;
  for (int64_t first = 0; first < step.count; first += kPiece) {
    kernels::ElementRange piece = range;
    piece.count = std::min(kPiece, step.count - first);
    piece.grad = base::offset_by(range.grad, first, byte_size(gradient_dtype(step)));
    piece.first = range.first + first;
    if (range.second != nullptr) piece.second = range.second + first;
    piece.weight = weight(p, {.first = step.first + first, .first_stride = piece.count, .index = step.index + first});
    step_.stats->watch({.parameter = p,
                        .form = context_.memory[p].form,
                        .block = {.rows = 1, .columns = piece.count, .weight = piece.weight, .active = piece.active}},
                       [&] {
                         update_ranges(step, {&piece, 1});
                       });
  }
}

kernels::ElementRange WaveExecutor::element_range(size_t w, const RangeStep& step) {
  const int32_t p = step.parameter;
  const State::MomentPointers moments = context_.state.moments(p, step.first, step.moments);
  const void* const grad = step.sum >= 0
                               ? part_f32(w) + step.sum
                               : base::offset_by(step_.gradients[p], step.first, byte_size(gradient_dtype(step)));
  return {.count = step.count,
          .grad = grad,
          .first = moments.first,
          .second = moments.second,
          .weight = weight(p, {.first = step.first, .index = step.index}),
          .multiplier = parameter(p).multiplier,
          .updates = context_.device == nullptr ? nullptr : context_.state.updates() + p,
          .active = active(p),
          .row_factors = row_factors(p)};
}

Dtype WaveExecutor::gradient_dtype(const RangeStep& step) const {
  return step.sum >= 0 ? Dtype::kF32 : parameter(step.parameter).grad_dtype;
}

void WaveExecutor::update_ranges(const RangeStep& step, std::span<const kernels::ElementRange> ranges) {
  const int32_t p = step.parameter;
  const Group& g = group(p);
  if (parameter(p).algorithm == Algorithm::kLion) {
    kernels_.lion({.grad = gradient_dtype(step),
                   .form = context_.memory[p].form,
                   .decay = g.decay,
                   .rounding = rounding(),
                   .beta1 = g.beta1,
                   .beta2 = g.beta2,
                   .grad_scale = step_.grad_scale,
                   .clip = step_.clip,
                   .rates = rates(p)},
                  ranges);
  } else {
    kernels_.adamw({.grad = gradient_dtype(step),
                    .form = context_.memory[p].form,
                    .decay = g.decay,
                    .rounding = rounding(),
                    .beta1 = g.beta1,
                    .beta2 = g.beta2,
                    .eps = g.eps,
                    .step = context_.device != nullptr ? 0 : context_.state.updates()[p] + 1,
                    .grad_scale = step_.grad_scale,
                    .clip = step_.clip,
                    .rates = rates(p)},
                   ranges);
  }
  ++stats().kernels;
}

}  // namespace muster::engine
