// Sums that are zero where all have the same.
#pragma once

#include <cstdint>

#include "plan/hash.h"

namespace muster::engine {

// What member `index` of `members` adds to a sum (which wraps) that is zero if all of them have the same `value` and,
// but for a chance of 2^-64, only then.
inline int64_t ballot(uint64_t value, int32_t index, int32_t members) {
  const auto weight = [](int32_t i) {
    plan::Hash hash;
    hash.add(i);
    return hash.value();
  };
  if (index + 1 < members) return static_cast<int64_t>(value * weight(index));
  uint64_t rest = 0;
  for (int32_t i = 0; i + 1 < members; ++i) rest -= weight(i);
  return static_cast<int64_t>(value * rest);
}

}  // namespace muster::engine
