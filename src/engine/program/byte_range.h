// Bytes in the part of the arena that belongs to one wave.
#pragma once

#include <cstdint>

namespace muster::engine {

struct ByteRange {
  int64_t offset = 0;  // from the start of the wave's part
  int64_t bytes = 0;
};

}  // namespace muster::engine
