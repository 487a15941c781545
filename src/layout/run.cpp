#include "layout/run.h"

#include <algorithm>

namespace muster::layout {

int64_t Box::volume() const {
  int64_t n = 1;
  for (int d = 0; d < dims; ++d) n *= std::max<int64_t>(0, end[d] - begin[d]);
  return n;
}

Box whole(const Shape& shape) {
  Box box;
  box.dims = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), box.end.begin());
  return box;
}

Box intersect(const Box& a, const Box& b) {
  Box box;
  box.dims = a.dims;
  for (int d = 0; d < a.dims; ++d) {
    box.begin[d] = std::max(a.begin[d], b.begin[d]);
    box.end[d] = std::max(box.begin[d], std::min(a.end[d], b.end[d]));
  }
  return box;
}

Index row_major_strides(const Shape& shape) {
  Index stride{};
  int64_t step = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    stride[d] = step;
    step *= shape[d];
  }
  return stride;
}

namespace {

// Elements begin to end of the sub-block that `fixed` selects in dims before d.
void cut_flat(const Shape& shape, const Index& strides, size_t d, Box fixed, int64_t begin, int64_t end,
              std::vector<Box>& out) {
  if (begin >= end) return;
  if (d == shape.size()) {
    out.push_back(fixed);
    return;
  }
  auto at = [&](int64_t lo, int64_t hi) {
    Box box = fixed;
    box.begin[d] = lo;
    box.end[d] = hi;
    return box;
  };
  const int64_t inner = strides[d];
  int64_t lo = begin / inner;
  const int64_t hi = end / inner;
  if (lo == hi) {
    cut_flat(shape, strides, d + 1, at(lo, lo + 1), begin - lo * inner, end - lo * inner, out);
    return;
  }
  if (begin % inner != 0) {
    cut_flat(shape, strides, d + 1, at(lo, lo + 1), begin % inner, inner, out);
    ++lo;
  }
  if (lo < hi) out.push_back(at(lo, hi));
  if (end % inner != 0) cut_flat(shape, strides, d + 1, at(hi, hi + 1), 0, end % inner, out);
}

}  // namespace

std::vector<Box> flat_range(const Shape& shape, int64_t begin, int64_t end) {
  std::vector<Box> boxes;
  cut_flat(shape, row_major_strides(shape), 0, whole(shape), begin, end, boxes);
  return boxes;
}

int64_t Run::offset_of(const Index& element) const {
  int64_t at = offset;
  for (int d = 0; d < box.dims; ++d) at += (element[d] - box.begin[d]) * stride[d];
  return at;
}

std::vector<Overlap> overlaps(const std::vector<Run>& first, const std::vector<Run>& second) {
  std::vector<Overlap> out;
  for (const Run& b : second) {
    for (const Run& a : first) {
      const Box box = intersect(a.box, b.box);
      if (box.empty()) continue;
      out.push_back({box, a.offset_of(box.begin), b.offset_of(box.begin), a.stride, b.stride});
    }
  }
  return out;
}

}  // namespace muster::layout
