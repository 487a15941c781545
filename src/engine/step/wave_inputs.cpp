// What the calls of a step depend on: the inputs that a captured step must match, and the rates that are uploaded in
// every step.
#include <bit>

#include "engine/step/hyperparameters.h"
#include "engine/step/wave_executor.h"

namespace muster::engine {

std::vector<int64_t> WaveExecutor::inputs() {
  const kernels::Rounding numbers = rounding();
  const auto address = [](const void* pointer) { return reinterpret_cast<int64_t>(pointer); };
  std::vector<int64_t> out{step_.program->number,
                           std::bit_cast<int64_t>(step_.grad_scale),
                           static_cast<int64_t>(numbers.seed),
                           static_cast<int64_t>(numbers.step),
                           address(step_.active),
                           address(step_.clip),
                           address(step_.stats),
                           address(rates())};
  out.reserve(out.size() + step_.groups.size() + 6 * context_.memory.size());
  for (const Group& g : step_.groups) out.push_back(static_cast<int64_t>(fingerprint_but_rates(g)));
  for (const void* const gradient : step_.gradients) out.push_back(address(gradient));
  for (const ParameterMemory& m : context_.memory) {
    out.insert(out.end(),
               {address(m.weight), address(m.extra), address(m.momentum), address(m.second), address(m.statistics)});
  }
  return out;
}

const kernels::Rates* WaveExecutor::rates() {
  if (step_rates_ != nullptr) return step_rates_;
  host_rates_.clear();
  for (const Group& g : step_.groups) host_rates_.push_back({g.lr, g.weight_decay, g.momentum});
  step_rates_ = context_.device == nullptr ? host_rates_.data() : context_.device->upload(host_rates_);
  return step_rates_;
}

kernels::Rounding WaveExecutor::rounding() const {
  if (!stochastic_) return {};
  return {static_cast<uint64_t>(context_.state.seed), static_cast<uint64_t>(step_.number)};
}

}  // namespace muster::engine
