// Made-up numbers: functions of the place that they are for, the same on every rank.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/hash.h"

namespace muster::run {

using base::kGolden;
using base::mix;

inline uint64_t hash(uint64_t stream, int64_t index) { return mix(stream + static_cast<uint64_t>(index) * kGolden); }

// The sum of four uniform numbers of 16 bits is near enough to normal: mean 2^17 - 2, deviation 2^16 / sqrt(3).
inline float normal(uint64_t bits, float unit) {
  const uint64_t sum = (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
  return static_cast<float>(static_cast<int32_t>(sum) - 131070) * unit;
}

// The unit that makes numbers with this standard deviation.
inline float unit_of(float size) { return size * (std::sqrt(3.0F) / 65536.0F); }

}  // namespace muster::run
