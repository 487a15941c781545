// Newton-Schulz on the device, as GEMMs of half-precision matrices that accumulate in f32.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/alignment.h"
#include "kernels/cuda/gemm_sm90/gemm.h"
#include "kernels/cuda/newton_schulz/newton_schulz_form.h"
#include "kernels/cuda/runtime/launch_queue.h"
#include "kernels/kernel_calls.h"

namespace muster::kernels::cuda {

constexpr int64_t pitch_of(int64_t columns) { return base::round_up(columns, 8); }

// X is not normalized in memory. Instead, the factors of the GEMMs that form its first Gram matrix A, and of those
// of the first step, include f = 1 / (safety ||X||), and t = 1 / (safety^2 ||A||) if A rescales X, else 1:
struct FirstScalars {
  Scalars gram;        // f^2, 0
  Scalars polynomial;  // c t^2, b t
  Scalars grams;       // t, a t; for the Gram form
  Scalars product;     // f sqrt(t), a f sqrt(t); the Gram form does not read the second
};

// Matrices of one shape on their way through the steps, in the half type of the form.
struct Iterates {
  Cublas* cublas = nullptr;  // multiplies instead of our GEMM, unless null
  Form form = Form::kStandard;
  MatrixShape shape{};
  int64_t batch = 0;
  std::array<Matrices, 2> x{};      // the first holds X
  std::array<void*, 4> grams{};     // grams_of(form) buffers of batch x n x pitch_of(n) elements
  float* lines = nullptr;           // batch x n, for rescaling
  const double* safety = nullptr;   // half_safety, on the device
  FirstScalars* scalars = nullptr;  // one per matrix, on the device, with t = 1
  float* row_squares = nullptr;     // receives the result's, as in Gemm; null: not computed. cuBLAS needs null

  int64_t n() const { return std::min(shape.rows, shape.columns); }  // Gram matrices are n x n
  Matrices gram(int i) const { return {grams[static_cast<size_t>(i)], n(), n(), pitch_of(n()), n() * pitch_of(n())}; }
};

// Returns the index in `x` of the result.
int newton_schulz(const Coefficients& coefficients, const Iterates& iterates, LaunchQueue& queue);

// ||G - I||_F^2 for those of `matrices` (on the device) that ask for it, where G is the Gram matrix of `o`, a result of
// newton_schulz(). Overwrites the first Gram matrix and `lines` of the iterates.
void measure_gram_error(const Iterates& iterates, const Matrices& o, const UpdateMatrix* matrices, LaunchQueue& queue);

}  // namespace muster::kernels::cuda
