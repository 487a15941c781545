// What an executor's calls are decided by, so that a device need not be told again; and what it is told in any case.
#include <bit>

#include "engine/step/executor.h"
#include "engine/step/hyperparameters.h"

namespace muster::engine {

const kernels::Rates* Executor::lend_rates() {
  if (lent_rates_ != nullptr) return lent_rates_;
  rates_.clear();
  for (const Group& g : groups_) rates_.push_back({g.lr, g.weight_decay, g.momentum});
  lent_rates_ = stream_ == nullptr ? rates_.data() : stream_->upload(rates_);
  return lent_rates_;
}

std::vector<int64_t> Executor::inputs(const Program& program, const StepInput& input) {
  const kernels::Rounding numbers = rounding(input);
  const auto number = [](const void* address) { return reinterpret_cast<int64_t>(address); };
  std::vector<int64_t> out{program.number,
                           std::bit_cast<int64_t>(input.grad_scale),
                           static_cast<int64_t>(numbers.seed),
                           static_cast<int64_t>(numbers.step),
                           number(input.active),
                           number(input.clip),
                           number(input.stats),
                           number(lend_rates())};
  out.reserve(out.size() + groups_.size() + 6 * memory_.size());
  for (const Group& g : groups_) out.push_back(static_cast<int64_t>(fingerprint_but_rates(g)));
  for (const void* const gradient : input.gradients) out.push_back(number(gradient));
  for (const ParameterMemory& m : memory_) {
    out.insert(out.end(),
               {number(m.weight), number(m.extra), number(m.momentum), number(m.second), number(m.statistics)});
  }
  return out;
}

}  // namespace muster::engine
