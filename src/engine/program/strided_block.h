// Two-dimensional blocks: what kernels work on, made of the boxes that plans speak of.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/run.h"

namespace muster::engine {

// rows x columns elements. Element (i, j) sits at first + i * first_stride + j in one buffer, at second + i *
// second_stride + j in another, and is number index + i * index_stride + j of its tensor.
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

// The blocks of an overlap, as few as can be, in the row-major order of its box.
std::vector<StridedBlock> strided_blocks(const layout::Overlap& piece, const Shape& shape);

}  // namespace muster::engine
