// Caps the largest singular values of a batch of matrices on the device. src/kernels/spectral_cap.h has the formulas.
#pragma once

#include <cstdint>

#include "kernels/cuda/newton_schulz/newton_schulz.h"
#include "kernels/cuda/newton_schulz/spectral_cap_kernels.h"
#include "kernels/cuda/newton_schulz/wire_batch.h"

namespace muster::kernels::cuda {

// Scratch of cap_spectrum(), per matrix where not stated otherwise. n is the shorter and m the longer side of X, r the
// columns of the sketch.
struct CapBuffers {
  void* signs = nullptr;   // r x n, for the batch
  void* sketch = nullptr;  // 2 r x m: Z^T and P^T, then E, then what E is replaced by
  void* basis = nullptr;   // 2 r x n: Y^T, then Q^T, for tall X twice
  void* factor = nullptr;  // the left factor of what is subtracted from X: rows(X) x 2 r
  float* sums = nullptr;   // partial sums of Gram matrices: gram_sums(n) of them, then gram_sums(m), r x r each
  float* small = nullptr;  // kSmallMatrices of r x r
  CapTraces* traces = nullptr;
  Scalars* scalars = nullptr;
};

// Fills in the buffers from take(bytes), which returns aligned memory; the sizes are those of any sketch.
template <typename Take>
CapBuffers take_cap_buffers(MatrixShape shape, int64_t batch, const Take& take) {
  constexpr int64_t r = kMostSketchColumns;
  constexpr int64_t kHalf = sizeof(uint16_t);
  constexpr int64_t kSquare = r * r * static_cast<int64_t>(sizeof(float));
  const int64_t n = std::min(shape.rows, shape.columns);
  const int64_t m = std::max(shape.rows, shape.columns);
  const auto place = [&]<typename T>(T*& pointer, int64_t bytes) { pointer = reinterpret_cast<T*>(take(bytes)); };
  CapBuffers buffers;
  buffers.signs = take(kHalf * r * pitch_of(n));
  buffers.sketch = take(kHalf * batch * 2 * r * pitch_of(m));
  buffers.basis = take(kHalf * batch * 2 * r * pitch_of(n));
  buffers.factor = take(kHalf * batch * shape.rows * 2 * r);
  place(buffers.sums, batch * (gram_sums(n) + gram_sums(m)) * kSquare);
  place(buffers.small, batch * kSmallMatrices * kSquare);
  place(buffers.traces, batch * static_cast<int64_t>(sizeof(CapTraces)));
  place(buffers.scalars, batch * static_cast<int64_t>(sizeof(Scalars)));
  return buffers;
}

// Writes x[0], capped, to x[1], swaps the two, and replaces the first scalars, which are those of x[0], by those of
// the result.
void cap_spectrum(int sketch, Iterates& iterates, const NormSettings* settings, const CapBuffers& buffers,
                  LaunchQueue& queue);

}  // namespace muster::kernels::cuda
