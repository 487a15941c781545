// Rounding of sizes and positions to multiples.
#pragma once

#include <cstdint>

namespace muster::base {

// Both for value >= 0 and multiple > 0.
constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
constexpr int64_t round_down(int64_t value, int64_t multiple) { return value / multiple * multiple; }

}  // namespace muster::base
