// NorMuon's factors for a batch of orthogonal factors of one shape.
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm_sm90/gemm.h"
#include "kernels/cuda/runtime/launch_queue.h"
#include "kernels/kernels.h"

namespace muster::kernels::cuda {

// The sum of squares of a line comes in parts, one for each 128 elements, to be added in order: of matrix m, part p and
// line i at (m * parts() + p) * lines() + i.
struct LineSums {
  static constexpr int64_t kPart = 128;

  LineAxis axis = LineAxis::kRows;
  MatrixShape shape{};

  int64_t lines() const { return axis == LineAxis::kRows ? shape.rows : shape.columns; }
  int64_t length() const { return axis == LineAxis::kRows ? shape.columns : shape.rows; }
  int64_t parts() const { return (length() + kPart - 1) / kPart; }
};

// Norms of some lines of a matrix before and after they are divided by the root of their variance, squared.
struct Norms {
  double before;
  double after;
};

// The factor of a line is 1 / (sqrt(V) + eps) times what keeps the matrix's norm: the root of the sum of its `before`
// by that of its `after`, or 0.
constexpr int64_t kNormLines = 512;  // whose Norms are one
inline int64_t norms_of(const LineSums& sums) { return (sums.lines() + kNormLines - 1) / kNormLines; }

// What O is multiplied with, on the device: line i of matrix m with inverses[m * lines + i] times what keeps m's norm.
struct LineFactors {
  const float* inverses = nullptr;  // null: O is left as it is
  const Norms* norms = nullptr;
  int lines = 0;
  int norm_count = 0;  // of a matrix
};

#ifdef __CUDACC__
// What keeps the norm of a matrix with `count` Norms. In one order: all who scale the matrix must agree to the bit.
__device__ inline float kept(const Norms* norms, int count) {
  Norms sum{};
  for (int i = 0; i < count; ++i) {
    sum.before += norms[i].before;
    sum.after += norms[i].after;
  }
  return sum.after > 0 ? static_cast<float>(sqrt(sum.before / sum.after)) : 0.0F;
}
#endif

// On the device.
struct NorMuon {
  const UpdateMatrix* matrices = nullptr;
  const OrthogonalizeOptions::Lines* options = nullptr;
  float* squares = nullptr;   // of LineSums
  float* inverses = nullptr;  // one a line
  Norms* norms = nullptr;     // norms_of(sums) a matrix
};

void sum_lines(Half type, const Matrices& o, int64_t batch, const LineSums& sums, float* squares, LaunchQueue& queue);

// From the sums of squares: advances the variances, and finds inverses and norms.
void advance_variances(int64_t batch, const LineSums& sums, const NorMuon& normuon, LaunchQueue& queue);

}  // namespace muster::kernels::cuda
