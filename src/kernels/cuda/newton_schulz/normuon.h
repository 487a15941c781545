// NorMuon's factors for a batch of orthogonal factors of one shape.
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm_sm90/gemm.h"
#include "kernels/cuda/runtime/launch_queue.h"
#include "kernels/kernel_calls.h"

namespace muster::kernels::cuda {

// The sums of squares of the lines of `batch` matrices. The sum of a line is stored as parts of 128 elements each,
// which are added in order: part p of line i of matrix m is at (m * parts() + p) * lines() + i.
struct LineSums {
  static constexpr int64_t kPart = 128;
  static constexpr int64_t kNormLines = 512;  // lines per SquaredNorms

  LineAxis axis = LineAxis::kRows;
  MatrixShape shape{};
  int64_t batch = 0;

  int64_t lines() const { return axis == LineAxis::kRows ? shape.rows : shape.columns; }
  int64_t length() const { return axis == LineAxis::kRows ? shape.columns : shape.rows; }
  int64_t parts() const { return (length() + kPart - 1) / kPart; }
  int64_t norms() const { return (lines() + kNormLines - 1) / kNormLines; }  // per matrix
};

// Squared norms of up to kNormLines lines of a matrix, before and after they are divided by the root of their variance.
struct SquaredNorms {
  double before;
  double after;
};

// What O is multiplied with, on the device: line i of matrix m with inverses[m * lines + i], which is 1 / (sqrt(V) +
// eps), times norm_factor() of the matrix.
struct LineFactors {
  const float* inverses = nullptr;  // null: O is not scaled
  const SquaredNorms* norms = nullptr;
  int lines = 0;
  int norm_count = 0;  // per matrix
};

#ifdef __CUDACC__
// The factor that keeps the norm of a matrix. It has one order of summation, because all kernels that scale the matrix
// must get the same bits.
__device__ inline float norm_factor(const SquaredNorms* norms, int count) {
  SquaredNorms sum{};
  for (int i = 0; i < count; ++i) {
    sum.before += norms[i].before;
    sum.after += norms[i].after;
  }
  return sum.after > 0 ? static_cast<float>(sqrt(sum.before / sum.after)) : 0.0F;
}
#endif

// On the device.
struct NorMuonBuffers {
  const UpdateMatrix* matrices = nullptr;
  const NorMuonOptions* options = nullptr;
  float* squares = nullptr;       // of LineSums
  float* inverses = nullptr;      // one per line
  SquaredNorms* norms = nullptr;  // LineSums::norms() per matrix
};

void sum_lines(Half type, const Matrices& o, const LineSums& sums, float* squares, LaunchQueue& queue);

// Updates the variances from the sums of squares, and computes inverses and norms.
void advance_variances(const LineSums& sums, const NorMuonBuffers& buffers, LaunchQueue& queue);

}  // namespace muster::kernels::cuda
