// Runs listed element by element.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/run.h"

namespace muster::test {

// The flat indices of a buffer's `elements` in the order in which they are stored, through the buffer's runs in a
// tensor of this shape; -1 where no run puts one.
inline std::vector<int64_t> flat_indices(const Shape& shape, const std::vector<layout::Run>& runs, int64_t elements) {
  std::vector<int64_t> out(static_cast<size_t>(elements), -1);
  const layout::Index strides = layout::row_major_strides(shape);
  for (const layout::Run& run : runs) {
    layout::Index at = run.box.begin;
    for (int64_t n = run.box.volume(); n > 0; --n) {
      int64_t flat = 0;
      for (int d = 0; d < run.box.dims; ++d) flat += at[d] * strides[d];
      out.at(static_cast<size_t>(run.offset_of(at))) = flat;
      for (int d = run.box.dims - 1; d >= 0 && ++at[d] == run.box.end[d]; --d) at[d] = run.box.begin[d];
    }
  }
  return out;
}

}  // namespace muster::test
