// A rank's shard of a state tensor: what export, import and checkpoints read and write.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "muster/optimizer.h"

namespace muster::engine {

// rows x columns elements in this rank's memory. Row i starts at element index + i * index_stride of the tensor, in
// row-major order, and at data + i * stride elements here.
struct StateBlock {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t index = 0;
  int64_t index_stride = 0;
  std::byte* data = nullptr;
  int64_t stride = 0;
  bool primary = true;                 // false: a copy; another rank's primary block has the same elements
  kernels::Kernels* device = nullptr;  // the device of `data`; null: host memory
};

// Over all ranks, the primary blocks cover every element of the tensor exactly once. Only they are exported and saved;
// import and load fill copies too.
struct StateShard {
  StateInfo info;  // of the unsharded tensor
  std::vector<StateBlock> blocks;
};

// Cuts a block into parts of at most `most` elements of `width` bytes, whole rows where they fit, and calls
// visit(part).
template <typename Visit>
void for_each_part(const StateBlock& block, int64_t width, int64_t most, Visit visit) {
  const int64_t columns = std::min(block.columns, most);
  const int64_t rows = columns == block.columns && columns > 0 ? most / columns : 1;
  for (int64_t i = 0; i < block.rows; i += rows) {
    for (int64_t j = 0; j < block.columns; j += columns) {
      StateBlock part = block;
      part.rows = std::min(rows, block.rows - i);
      part.columns = std::min(columns, block.columns - j);
      part.index += i * block.index_stride + j;
      part.data += (i * block.stride + j) * width;
      visit(part);
    }
  }
}

// The same elements as a dense copy in host memory at `data`.
inline StateBlock on_host(const StateBlock& block, std::byte* data) {
  StateBlock copy = block;
  copy.data = data;
  copy.stride = block.columns;
  copy.device = nullptr;
  return copy;
}
// The rows that a copy between a block on a device and its dense copy moves.
inline kernels::HostRows host_rows(const StateBlock& block, int64_t width) {
  return {block.rows, block.columns * width, block.stride * width, block.columns * width};
}

}  // namespace muster::engine
