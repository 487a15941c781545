// What the words of a SumOfSquares are worth: the same bits on the host and on a device.
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/sum_of_squares.h"

#ifdef __CUDACC__
#define MUSTER_HOST_DEVICE __host__ __device__
#else
#define MUSTER_HOST_DEVICE
#endif

namespace muster::kernels {

// Every limb but the last becomes less than 2^32.
MUSTER_HOST_DEVICE inline void carry_limbs(int64_t* limbs) {
  for (int i = 0; i + 1 < SumOfSquares::kLimbs; ++i) {
    limbs[i + 1] += limbs[i] >> 32;
    limbs[i] &= 0xffffffff;
  }
}

// The sum, rounded once. Carries.
MUSTER_HOST_DEVICE inline double value_of_words(int64_t* words) {
  __extension__ typedef unsigned __int128 Wide;
  constexpr int kLimbs = SumOfSquares::kLimbs;
  if (words[kLimbs] != 0) return __builtin_nan("");
  if (words[kLimbs + 1] != 0) return __builtin_huge_val();
  carry_limbs(words);
  int top = kLimbs - 1;
  while (top > 0 && words[top] == 0) --top;
  // 64 bits from the highest one down; what lies below only matters as "more than nothing".
  Wide head = static_cast<uint64_t>(words[top]);
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
  rest = rest || (head & ((Wide{1} << drop) - 1)) != 0;
  const uint64_t mantissa = static_cast<uint64_t>(head >> drop) << 1 | (rest ? 1 : 0);
  return std::ldexp(static_cast<double>(mantissa), bit + drop - 1 - 298);
}

}  // namespace muster::kernels
