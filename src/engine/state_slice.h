// A rank's part of an unsharded tensor: what export, import and checkpoints read and write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "muster/optimizer.h"

namespace muster::engine {

// rows x columns elements in this rank's memory. Row i starts at element index + i * index_stride of the tensor, in
// row-major order, and at data + i * stride elements here.
struct StatePiece {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t index = 0;
  int64_t index_stride = 0;
  std::byte* data = nullptr;
  int64_t stride = 0;
  bool counts = true;  // false where another rank has the same elements and stands for them
};

// Over all ranks the pieces that count cover the tensor, every element once.
struct StateSlice {
  StateInfo info;
  std::vector<StatePiece> pieces;
};

}  // namespace muster::engine
