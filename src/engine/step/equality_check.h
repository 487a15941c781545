// Sums that are zero where all have the same.
#pragma once

#include <cstdint>
#include <utility>

#include "base/hash.h"

namespace muster::engine {

// What member `index` of `members` adds to a sum (which wraps) that is zero if all of them have the same `value` and,
// but for a chance of 2^-64, only then.
inline int64_t ballot(uint64_t value, int32_t index, int32_t members) {
  const auto weight = [](int32_t i) {
    base::Hash hash;
    hash.add(i);
    return hash.value();
  };
  if (index + 1 < members) return static_cast<int64_t>(value * weight(index));
  thread_local std::pair<int32_t, uint64_t> last{1, 0};  // members, and what is left for the last of them
  if (last.first != members) {
    last = {members, 0};
    for (int32_t i = 0; i + 1 < members; ++i) last.second -= weight(i);
  }
  return static_cast<int64_t>(value * last.second);
}

}  // namespace muster::engine
