// Launches of kernels that are compiled for every number of columns of a sketch.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "kernels/spectral_cap.h"
#include "kernels/weight_form_dispatch.h"

namespace muster::kernels::cuda {

// Calls f with `columns`, one of kSketchColumns, as Value<n>.
template <typename F>
void with_sketch(int64_t columns, const F& f) {
  static_assert(kSketchColumns == std::array{32, 64, 96});
  columns == 32 ? f(Value<32>{}) : columns == 64 ? f(Value<64>{}) : f(Value<96>{});
}

// A grid of `across` thread blocks per matrix.
inline dim3 grid_of(int64_t across, int64_t batch) {
  return {static_cast<unsigned>(across), static_cast<unsigned>(batch)};
}

}  // namespace muster::kernels::cuda
