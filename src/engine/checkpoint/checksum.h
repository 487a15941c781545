// A 64-bit checksum of a tensor that does not depend on who holds which part of it: the sum of the checksums of its
// parts, however it is cut, wrapping at 2^64.
#pragma once

#include <cstdint>
#include <string_view>

namespace muster::engine {

// Of `count` elements of `width` bytes (1, 2, 4 or 8) in memory, the first of which is element `index` of the tensor.
//
// Each element, as an unsigned number, times an odd key of its index. A change of one element therefore always shows.
// Any other change (swapped, shifted or zeroed elements) goes unnoticed with a chance of 2^-32 at most, if nobody chose
// it for these keys: it guards against damage, not against forgery.
uint64_t checksum(const void* data, int64_t count, int64_t index, int64_t width);

// Of bytes and their number.
uint64_t checksum(std::string_view text);

}  // namespace muster::engine
