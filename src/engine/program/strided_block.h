// Two-dimensional strided blocks: what kernels work on, made from the boxes of a plan.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/run.h"

namespace muster::engine {

// rows x columns elements of a tensor, and where two buffers store them. Element (i, j) is at first + i * first_stride
// + j in the first buffer, at second + i * second_stride + j in the second, and is number index + i * index_stride + j
// of the tensor in row-major order.
struct StridedBlock {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t first = 0;
  int64_t first_stride = 0;
  int64_t second = 0;
  int64_t second_stride = 0;
  int64_t index = 0;
  int64_t index_stride = 0;

  int64_t elements() const { return rows * columns; }
};

// The blocks of a box in two buffers: as few as possible, in the row-major order of the box.
std::vector<StridedBlock> strided_blocks(const layout::Intersection& piece, const Shape& shape);
// The blocks of runs in one buffer: `first` and `second` are equal.
std::vector<StridedBlock> strided_blocks(const std::vector<layout::Run>& runs, const Shape& shape);

// The same blocks with other places in the second buffer: one after the other from `begin`, or `distance` further on.
std::vector<StridedBlock> packed(std::vector<StridedBlock> blocks, int64_t begin = 0);
std::vector<StridedBlock> shifted(std::vector<StridedBlock> blocks, int64_t distance);

}  // namespace muster::engine
