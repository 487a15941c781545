// The value of a SumOfSquares, with the same bits on the host and on a device.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/sum_of_squares.h"

namespace muster::kernels {

// Afterwards every limb but the last is less than 2^32.
MUSTER_HOST_DEVICE inline void propagate_carries(int64_t* limbs) {
  for (int i = 0; i + 1 < SumOfSquares::kLimbs; ++i) {
    limbs[i + 1] += limbs[i] >> 32;
    limbs[i] &= 0xffffffff;
  }
}

// The sum, rounded once. Propagates the carries of `words`.
MUSTER_HOST_DEVICE inline double value_of_words(int64_t* words) {
  __extension__ typedef unsigned __int128 Uint128;
  constexpr int kLimbs = SumOfSquares::kLimbs;
  if (words[kLimbs] != 0) return __builtin_nan("");
  if (words[kLimbs + 1] != 0) return __builtin_huge_val();
  propagate_carries(words);
  int top = kLimbs - 1;
  while (top > 0 && words[top] == 0) --top;
  // The highest three limbs; of the limbs below them, only whether they are all zero affects rounding.
  Uint128 head = static_cast<uint64_t>(words[top]);
  int bit = 32 * top;
  bool rest = false;
  for (int i = top - 1; i >= 0; --i) {
    const uint64_t limb = static_cast<uint64_t>(words[i]);
    if (i >= top - 2) {
      head = head << 32 | limb;
      bit -= 32;
    } else {
      rest = rest || limb != 0;
    }
  }
  int drop = 0;
  while (head >> drop >> 62 != 0) ++drop;
  rest = rest || (head & ((Uint128{1} << drop) - 1)) != 0;
  const uint64_t mantissa = static_cast<uint64_t>(head >> drop) << 1 | (rest ? 1 : 0);
  return std::ldexp(static_cast<double>(mantissa), bit + drop - 1 - 298);
}

}  // namespace muster::kernels
