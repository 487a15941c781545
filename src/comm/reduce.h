// Element-wise reduction in the order of the ranks.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <type_traits>

#include "muster/communicator.h"

namespace muster::comm {

template <typename T>
T combine(T a, T b, ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return b < a || b != b ? b : a;
    case ReduceOp::kMax:
      return a < b || b != b ? b : a;
    case ReduceOp::kSum:
      break;
  }
  if constexpr (std::is_integral_v<T>) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
  } else {
    return a + b;
  }
}

// result[i] = ((parts[0][i] op parts[1][i]) op parts[2][i]) ...; the result may be one of the parts.
template <typename T>
void reduce_in_order(std::span<const T* const> parts, T* result, int64_t count, ReduceOp op) {
  constexpr int64_t kBlock = 1024;
  std::array<T, kBlock> block;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t length = std::min(kBlock, count - begin);
    std::copy_n(parts[0] + begin, length, block.begin());
    for (const T* part : parts.subspan(1)) {
      for (int64_t i = 0; i < length; ++i) block[i] = combine(block[i], part[begin + i], op);
    }
    std::copy_n(block.begin(), length, result + begin);
  }
}

}  // namespace muster::comm
