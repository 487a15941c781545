// Orthogonal factors as the iterations leave them, before they are rounded to the wire dtype.
#pragma once

#include <cstddef>

#include "kernels/cuda/gemm_sm90/gemm.h"
#include "kernels/cuda/newton_schulz/normuon.h"
#include "kernels/kernel_calls.h"

namespace muster::kernels::cuda {

// Matrices [first, first + count) of a batch: the orthogonal factors `o`, and NorMuon's factors, which are yet to be
// multiplied with them.
struct Orthogonalized {
  size_t first = 0;
  size_t count = 0;
  const UpdateMatrix* matrices = nullptr;  // on the device
  Half type = Half::kBf16;
  Matrices o;
  LineAxis axis = LineAxis::kRows;
  LineFactors factors{};
};

}  // namespace muster::kernels::cuda
