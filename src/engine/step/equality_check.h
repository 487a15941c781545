// Equality check across ranks: contributions sum to zero only if all values match.
#pragma once

#include <cstdint>
#include <utility>

#include "base/hash.h"

namespace muster::engine {

// What member `index` of `members` adds to the sum, which wraps. Values that differ sum to zero with a chance of 2^-64.
inline int64_t contribution(uint64_t value, int32_t index, int32_t members) {
  const auto weight = [](int32_t i) {
    base::Hash hash;
    hash.add(i);
    return hash.value();
  };
  if (index + 1 < members) return static_cast<int64_t>(value * weight(index));
  thread_local std::pair<int32_t, uint64_t> last{1, 0};  // members, and the weight of the last: all weights sum to zero
  if (last.first != members) {
    last = {members, 0};
    for (int32_t i = 0; i + 1 < members; ++i) last.second -= weight(i);
  }
  return static_cast<int64_t>(value * last.second);
}

}  // namespace muster::engine
