// Conversions between f32 and the bits of bf16.
#pragma once

#include <bit>
#include <cstdint>

namespace muster::kernels {

inline uint16_t to_bf16(float v) {  // to nearest, ties to even; not for NaN
  const auto bits = std::bit_cast<uint32_t>(v);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float from_bf16(uint16_t v) { return std::bit_cast<float>(static_cast<uint32_t>(v) << 16); }

}  // namespace muster::kernels
