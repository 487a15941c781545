#include "layout/run.h"

#include <algorithm>
#include <utility>

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

// Cuts a range of a tensor's elements into boxes.
class RangeCutter {
 public:
  explicit RangeCutter(const Shape& shape) : shape_(shape), strides_(row_major_strides(shape)) {}

  std::vector<Box> cut(int64_t begin, int64_t end) {
    add(0, whole(shape_), begin, end);
    return std::move(boxes_);
  }

 private:
  // Elements begin to end of the sub-block that `fixed` selects in dims before d.
  void add(size_t d, const Box& fixed, int64_t begin, int64_t end) {
    if (begin >= end) return;
    if (d == shape_.size()) {
      boxes_.push_back(fixed);
      return;
    }
    const auto at = [&](int64_t lo, int64_t hi) {
      Box box = fixed;
      box.begin[d] = lo;
      box.end[d] = hi;
      return box;
    };
    const int64_t inner = strides_[d];
    int64_t lo = begin / inner;
    const int64_t hi = end / inner;
    if (lo == hi) return add(d + 1, at(lo, lo + 1), begin - lo * inner, end - lo * inner);
    if (begin % inner != 0) {
      add(d + 1, at(lo, lo + 1), begin % inner, inner);
      ++lo;
    }
    if (lo < hi) boxes_.push_back(at(lo, hi));
    if (end % inner != 0) add(d + 1, at(hi, hi + 1), 0, end % inner);
  }

  const Shape& shape_;
  const Index strides_;
  std::vector<Box> boxes_;
};

}  // namespace

std::vector<Box> flat_range(const Shape& shape, int64_t begin, int64_t end) {
  return RangeCutter(shape).cut(begin, end);
}

int64_t Run::offset_of(const Index& element) const {
  int64_t at = offset;
  for (int d = 0; d < box.dims; ++d) at += (element[d] - box.begin[d]) * stride[d];
  return at;
}

std::vector<Intersection> intersections(const std::vector<Run>& first, const std::vector<Run>& second) {
  std::vector<Intersection> out;
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
