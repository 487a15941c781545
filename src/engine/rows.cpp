#include "engine/rows.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace muster::engine {

namespace {

float from_bf16(uint16_t half) { return std::bit_cast<float>(static_cast<uint32_t>(half) << 16); }

}  // namespace

void add_row(Dtype dtype, const void* from, int64_t count, float* to) {
  if (dtype == Dtype::kF32) {
    const auto* const values = static_cast<const float*>(from);
    for (int64_t i = 0; i < count; ++i) to[i] += values[i];
    return;
  }
  const auto* const values = static_cast<const uint16_t*>(from);
  for (int64_t i = 0; i < count; ++i) to[i] += from_bf16(values[i]);
}

void copy_rows(std::byte* to, int64_t to_stride, const std::byte* from, int64_t from_stride, int64_t rows,
               int64_t bytes) {
  if (to_stride == bytes && from_stride == bytes) {
    bytes *= rows;
    rows = std::min<int64_t>(rows, 1);
  }
  for (int64_t i = 0; i < rows; ++i) {
    std::memcpy(to + i * to_stride, from + i * from_stride, static_cast<size_t>(bytes));
  }
}

void read_weights(const ParameterMemory& m, const Block& block, std::vector<float>& values) {
  values.resize(static_cast<size_t>(block.elements()));
  size_t n = 0;
  for (int64_t i = 0; i < block.rows; ++i) {
    const int64_t row = block.first + i * block.first_stride;
    for (int64_t j = row; j < row + block.columns; ++j, ++n) {
      if (m.form == WeightForm::kF32) {
        values[n] = static_cast<const float*>(m.weight)[j];
      } else if (m.form == WeightForm::kBf16Master) {
        values[n] = static_cast<const float*>(m.extra)[j];
      } else {
        const auto high = static_cast<uint32_t>(static_cast<const uint16_t*>(m.weight)[j]) << 16;
        const uint32_t low =
            m.form == WeightForm::kBf16Mantissa ? static_cast<const uint16_t*>(m.extra)[j] : uint32_t{0};
        values[n] = std::bit_cast<float>(high | low);
      }
    }
  }
}

}  // namespace muster::engine
