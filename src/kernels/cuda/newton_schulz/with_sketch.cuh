// Chooses kernels by the number of columns of a sketch.
#pragma once

#include "kernels/spectral_cap.h"
#include "kernels/weight_form_dispatch.h"

namespace muster::kernels::cuda {

// Calls f with `columns`, one of kSketchColumns, as Value<n>.
template <typename F>
void with_sketch(int64_t columns, const F& f) {
  static_assert(kSketchColumns == std::array{32, 64, 96});
  columns == 32 ? f(Value<32>{}) : columns == 64 ? f(Value<64>{}) : f(Value<96>{});
}

}  // namespace muster::kernels::cuda
