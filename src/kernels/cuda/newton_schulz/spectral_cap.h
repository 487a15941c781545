// Caps the largest singular values of a batch of matrices on the device. src/kernels/spectral_cap.h has the formulas.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/newton_schulz/newton_schulz.h"
#include "kernels/cuda/newton_schulz/spectral_cap_kernels.h"
#include "kernels/cuda/newton_schulz/wire_batch.h"

namespace muster::kernels::cuda {

// The columns of the sketch of a matrix whose shorter side is n: those that are asked for, or the fewest that n needs.
// 0 if there is nothing to cap: a single line has one singular value.
constexpr int sketch_columns(int sketch, int64_t n) {
  if (sketch == 0 || n <= 1) return 0;
  return *std::ranges::find_if(kSketchColumns, [&](int columns) { return columns >= std::min<int64_t>(sketch, n); });
}

// Scratch of cap_spectrum(), per matrix where not stated otherwise. n is the shorter and m the longer side of X, r the
// columns of the sketch.
struct CapBuffers {
  void* signs = nullptr;   // r x n, for the batch
  void* sketch = nullptr;  // 2 r x m: Z^T and P^T, then E, then what E is replaced by
  void* basis = nullptr;   // 2 r x n: Y^T, then Q^T, for tall X twice
  void* factor = nullptr;  // the left factor of what is subtracted from X: rows(X) x 2 r
  float* sums = nullptr;   // partial sums of Gram matrices: gram_parts(n) of them, then gram_parts(m), r x r each
  float* small = nullptr;  // kSmallMatrices of r x r
  CapTraces* traces = nullptr;
  Scalars* scalars = nullptr;
};

// Fills in the buffers from take(bytes), which returns aligned memory; they are large enough for any sketch.
template <typename Take>
CapBuffers take_cap_buffers(MatrixShape shape, int64_t batch, const Take& take) {
  const int64_t n = std::min(shape.rows, shape.columns);
  const int64_t r = sketch_columns(kMostSketchColumns, n);
  if (r == 0) return {};
  constexpr int64_t kHalf = sizeof(uint16_t);
  const int64_t square = r * r * static_cast<int64_t>(sizeof(float));
  const int64_t m = std::max(shape.rows, shape.columns);
  const auto place = [&]<typename T>(T*& pointer, int64_t bytes) { pointer = reinterpret_cast<T*>(take(bytes)); };
  CapBuffers buffers;
  buffers.signs = take(kHalf * r * pitch_of(n));
  buffers.sketch = take(kHalf * batch * 2 * r * pitch_of(m));
  buffers.basis = take(kHalf * batch * 2 * r * pitch_of(n));
  buffers.factor = take(kHalf * batch * shape.rows * 2 * r);
  place(buffers.sums, batch * (gram_parts(n) + gram_parts(m)) * square);
  place(buffers.small, batch * kSmallMatrices * square);
  place(buffers.traces, batch * static_cast<int64_t>(sizeof(CapTraces)));
  place(buffers.scalars, batch * static_cast<int64_t>(sizeof(Scalars)));
  return buffers;
}

// Writes x[0], capped, to x[1], swaps the two, and replaces the first scalars, which are those of x[0], by those of the
// result. Where n < r, c and these scalars count the columns that the sketch has too many; the norm of the first Gram
// matrix makes up for both, so the coefficients must have Rescale::kGram.
void cap_spectrum(int sketch, Iterates& iterates, const NormSettings* settings, const CapBuffers& buffers,
                  LaunchQueue& queue);

}  // namespace muster::kernels::cuda
