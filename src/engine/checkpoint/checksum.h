// A 64-bit checksum of a tensor that does not depend on how ranks shard it: the checksums of its parts, however it is
// cut, add up to it, wrapping at 2^64.
#pragma once

#include <cstdint>
#include <string_view>

namespace muster::engine {

// The checksum of `count` elements of `width` bytes (1, 2, 4 or 8) in memory. The first is element `index` of the
// tensor.
//
// It sums each element, as an unsigned number, times an odd key of its index. A change of one element is always
// detected. Any other damage (swapped, shifted or zeroed elements) goes unnoticed with a probability of at most 2^-32.
// It does not protect against forgery.
uint64_t checksum(const void* data, int64_t count, int64_t index, int64_t width);

// The checksum of the bytes and of their number.
uint64_t checksum(std::string_view text);

}  // namespace muster::engine
