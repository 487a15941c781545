// A rank's part of an unsharded tensor: what export, import and checkpoints read and write.
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
  bool counts = true;                  // false where another rank has the same elements and stands for them
  kernels::Kernels* device = nullptr;  // whose memory `data` is; null: the host's
};

// Cuts a piece into parts of at most `most` elements, whole rows where they fit, and calls visit(part).
template <typename Visit>
void for_each_part(const StateBlock& piece, int64_t width, int64_t most, Visit visit) {
  const int64_t columns = std::min(piece.columns, most);
  const int64_t rows = columns == piece.columns && columns > 0 ? most / columns : 1;
  for (int64_t i = 0; i < piece.rows; i += rows) {
    for (int64_t j = 0; j < piece.columns; j += columns) {
      StateBlock part = piece;
      part.rows = std::min(rows, piece.rows - i);
      part.columns = std::min(columns, piece.columns - j);
      part.index += i * piece.index_stride + j;
      part.data += (i * piece.stride + j) * width;
      visit(part);
    }
  }
}

// A dense copy on the host, in memory for as many elements.
inline StateBlock on_host(const StateBlock& piece, std::byte* data) {
  StateBlock copy = piece;
  copy.data = data;
  copy.stride = piece.columns;
  copy.device = nullptr;
  return copy;
}
inline kernels::HostRows host_rows(const StateBlock& piece, int64_t width) {
  return {piece.rows, piece.columns * width, piece.stride * width, piece.columns * width};
}

// Over all ranks the pieces that count cover the tensor, every element once.
struct StateShard {
  StateInfo info;
  std::vector<StateBlock> pieces;
};

}  // namespace muster::engine
