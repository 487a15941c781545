// 128-bit products of 64-bit counts and nanoseconds.
#pragma once

#include <cstdint>

namespace muster::base {

__extension__ using Int128 = __int128;

// a * b / c, rounded down, for results that fit.
inline int64_t mul_div(int64_t a, int64_t b, int64_t c) {
  int64_t product = 0;
  if (!__builtin_mul_overflow(a, b, &product)) return product / c;
  return static_cast<int64_t>(Int128{a} * b / c);
}

}  // namespace muster::base
