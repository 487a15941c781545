#include "engine/program/strided_block.h"

namespace muster::engine {

namespace {

struct Dim {
  int64_t extent = 1;
  int64_t first = 1;  // strides in the two buffers and in the tensor
  int64_t second = 1;
  int64_t index = 1;
};

bool follows(const Dim& outer, const Dim& inner) {
  return outer.first == inner.extent * inner.first && outer.second == inner.extent * inner.second &&
         outer.index == inner.extent * inner.index;
}

}  // namespace

std::vector<StridedBlock> strided_blocks(const layout::Overlap& piece, const Shape& shape) {
  const layout::Index tensor = layout::row_major_strides(shape);
  std::vector<Dim> dims;
  int64_t index = 0;
  for (int d = 0; d < piece.box.dims; ++d) {
    index += piece.box.begin[d] * tensor[d];
    const Dim dim{piece.box.end[d] - piece.box.begin[d], piece.first_stride[d], piece.second_stride[d], tensor[d]};
    if (dim.extent == 1) continue;
    if (!dims.empty() && follows(dims.back(), dim)) {
      dims.back() = {dims.back().extent * dim.extent, dim.first, dim.second, dim.index};
    } else {
      dims.push_back(dim);
    }
  }
  // The last dim makes the columns, if its elements are neighbours everywhere; the one before it the rows.
  const bool adjacent = !dims.empty() && dims.back().first == 1 && dims.back().second == 1 && dims.back().index == 1;
  if (!adjacent) dims.push_back({});
  const Dim columns = dims.back();
  dims.pop_back();
  Dim rows{1, columns.extent, columns.extent, columns.extent};
  if (!dims.empty()) {
    rows = dims.back();
    dims.pop_back();
  }
  std::vector<StridedBlock> out{{rows.extent, columns.extent, piece.first_offset, rows.first, piece.second_offset,
                                 rows.second, index, rows.index}};
  for (size_t d = dims.size(); d-- > 0;) {
    std::vector<StridedBlock> more;
    for (int64_t i = 0; i < dims[d].extent; ++i) {
      for (StridedBlock block : out) {
        block.first += i * dims[d].first;
        block.second += i * dims[d].second;
        block.index += i * dims[d].index;
        more.push_back(block);
      }
    }
    out = std::move(more);
  }
  return out;
}

}  // namespace muster::engine
