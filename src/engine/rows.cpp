#include "engine/rows.h"

#include <bit>

#include "engine/state.h"
#include "kernels/bf16.h"

namespace muster::engine {

void read_weights(kernels::Kernels& kernels, const ParameterMemory& m, const Block& block, std::vector<float>& values) {
  values.resize(static_cast<size_t>(block.elements()));
  const auto fetch = [&](void* to, const void* from, int64_t width) {
    const auto* const first = static_cast<const std::byte*>(from) + block.first * width;
    kernels.read(to, first, {block.rows, block.columns * width, block.first_stride * width, block.columns * width});
  };
  if (m.form == WeightForm::kF32) return fetch(values.data(), m.weight, 4);
  std::vector<uint16_t> high(values.size());
  if (m.form == WeightForm::kBf16Master) {
    fetch(values.data(), m.extra, 4);
    fetch(high.data(), m.weight, 2);
    for (size_t i = 0; i < values.size(); ++i) {  // one that is not its rounding was set, and counts
      if (kernels::to_bf16(values[i]) != high[i]) values[i] = kernels::from_bf16(high[i]);
    }
    return;
  }
  std::vector<uint16_t> low(values.size());
  fetch(high.data(), m.weight, 2);
  if (m.form == WeightForm::kBf16Mantissa) fetch(low.data(), m.extra, 2);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::bit_cast<float>(static_cast<uint32_t>(high[i]) << 16 | low[i]);
  }
}

}  // namespace muster::engine
