// The elements of a run, in stretches that lie side by side both in the parameter and in the run's buffer.
#pragma once

#include <cstdint>

#include "layout/run.h"

namespace muster::run {

struct Row {
  int64_t first = 0;   // in the parameter
  int64_t offset = 0;  // in the buffer
  int64_t count = 0;
};

template <typename Visit>
void for_each_row(const Shape& shape, const layout::Run& run, Visit visit) {
  const layout::Index global = layout::row_major_strides(shape);
  const int dims = run.box.dims;
  auto extent = [&](int d) { return run.box.end[d] - run.box.begin[d]; };
  if (run.box.empty()) return;
  // Dims that lie alike in both are one.
  int outer = dims;
  int64_t count = 1;
  while (outer > 0 && (extent(outer - 1) == 1 || (run.stride[outer - 1] == count && global[outer - 1] == count))) {
    count *= extent(--outer);
  }
  layout::Index at{};
  while (true) {
    Row row{0, run.offset, count};
    for (int d = 0; d < dims; ++d) {
      row.first += (run.box.begin[d] + at[d]) * global[d];
      row.offset += at[d] * run.stride[d];
    }
    visit(row);
    int d = outer - 1;
    while (d >= 0 && ++at[d] == extent(d)) at[d--] = 0;
    if (d < 0) return;
  }
}

}  // namespace muster::run
