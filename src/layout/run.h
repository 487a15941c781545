// Runs: nested strided sets of elements. A box in the row-major index space of one tensor, and where each of its
// elements sits in some buffer (a rank's shard, or a matrix).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "muster/layout.h"

namespace muster::layout {

using Index = std::array<int64_t, kMaxDims>;

struct Box {
  int dims = 0;
  Index begin{};
  Index end{};

  int64_t volume() const;
  bool empty() const { return volume() == 0; }
  bool operator==(const Box&) const = default;
};

Box whole(const Shape& shape);
Box intersect(const Box& a, const Box& b);

Index row_major_strides(const Shape& shape);

// The row-major elements begin to end of a tensor, as at most 2 * dims - 1 boxes in ascending order.
std::vector<Box> flat_range(const Shape& shape, int64_t begin, int64_t end);

struct Run {
  Box box;
  int64_t offset = 0;  // in the buffer, of the first element of the box
  Index stride{};      // in the buffer, for one step along each dim

  int64_t offset_of(const Index& element) const;
};

// What two buffers have in common: one box, and where it sits in each. In both, the element at `box.begin + x` sits at
// offset + sum(x[d] * stride[d]).
struct Intersection {
  Box box;
  int64_t first_offset = 0;
  int64_t second_offset = 0;
  Index first_stride{};
  Index second_stride{};
};

// All intersections of two sets of runs of the same tensor, ordered by the runs of `second`, then of `first`.
std::vector<Intersection> intersections(const std::vector<Run>& first, const std::vector<Run>& second);

}  // namespace muster::layout
