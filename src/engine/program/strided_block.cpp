#include "engine/program/strided_block.h"

namespace muster::engine {

namespace {

struct Dim {
  int64_t extent = 1;
  int64_t first = 1;  // strides in the two buffers and in the tensor
  int64_t second = 1;
  int64_t index = 1;
};

// True if both dims can be walked as one.
bool contiguous(const Dim& outer, const Dim& inner) {
  return outer.first == inner.extent * inner.first && outer.second == inner.extent * inner.second &&
         outer.index == inner.extent * inner.index;
}

}  // namespace

std::vector<StridedBlock> strided_blocks(const layout::Intersection& piece, const Shape& shape) {
  const layout::Index tensor = layout::row_major_strides(shape);
  std::vector<Dim> dims;
  int64_t index = 0;
  for (int d = 0; d < piece.box.dims; ++d) {
    index += piece.box.begin[d] * tensor[d];
    const Dim dim{piece.box.end[d] - piece.box.begin[d], piece.first_stride[d], piece.second_stride[d], tensor[d]};
    if (dim.extent == 1) continue;
    if (!dims.empty() && contiguous(dims.back(), dim)) {
      dims.back() = {dims.back().extent * dim.extent, dim.first, dim.second, dim.index};
    } else {
      dims.push_back(dim);
    }
  }
  // The last dim becomes the columns if its elements are adjacent everywhere; the dim before it becomes the rows.
  const bool adjacent = !dims.empty() && dims.back().first == 1 && dims.back().second == 1 && dims.back().index == 1;
  if (!adjacent) dims.push_back({});
  const Dim columns = dims.back();
  dims.pop_back();
  Dim rows{1, columns.extent, columns.extent, columns.extent};
  if (!dims.empty()) {
    rows = dims.back();
    dims.pop_back();
  }
  std::vector<StridedBlock> out{{.rows = rows.extent,
                                 .columns = columns.extent,
                                 .first = piece.first_offset,
                                 .first_stride = rows.first,
                                 .second = piece.second_offset,
                                 .second_stride = rows.second,
                                 .index = index,
                                 .index_stride = rows.index}};
  // Every further dim, innermost first, repeats the blocks made so far.
  for (size_t d = dims.size(); d-- > 0;) {
    std::vector<StridedBlock> repeated;
    for (int64_t i = 0; i < dims[d].extent; ++i) {
      for (StridedBlock block : out) {
        block.first += i * dims[d].first;
        block.second += i * dims[d].second;
        block.index += i * dims[d].index;
        repeated.push_back(block);
      }
    }
    out = std::move(repeated);
  }
  return out;
}

std::vector<StridedBlock> strided_blocks(const std::vector<layout::Run>& runs, const Shape& shape) {
  std::vector<StridedBlock> out;
  for (const layout::Run& run : runs) {
    for (const StridedBlock& block : strided_blocks({run.box, run.offset, run.offset, run.stride, run.stride}, shape)) {
      out.push_back(block);
    }
  }
  return out;
}

std::vector<StridedBlock> packed(std::vector<StridedBlock> blocks, int64_t begin) {
  for (StridedBlock& block : blocks) {
    block.second = begin;
    block.second_stride = block.columns;
    begin += block.elements();
  }
  return blocks;
}

std::vector<StridedBlock> shifted(std::vector<StridedBlock> blocks, int64_t distance) {
  for (StridedBlock& block : blocks) block.second += distance;
  return blocks;
}

}  // namespace muster::engine
