// Rounding of sizes and positions up to a multiple.
#pragma once

#include <cstdint>

namespace muster::base {

// For value >= 0 and multiple > 0.
constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace muster::base
