// The cap of kernels/spectral_cap.h on a batch of matrices of one shape, in f32; what is r x r is in double.
#pragma once

#include "kernels/cpu/batch_work.h"
#include "kernels/kernels.h"

namespace muster::kernels::cpu {

// Bytes of scratch for one matrix, whatever the sketch is.
int64_t spectral_cap_bytes(MatrixShape shape);

// Matrix m is at x + m stride, f32, row-major and contiguous; its scratch is at scratch + m stride. All are multiples
// of 64 bytes, but x and scratch themselves need only the alignment of a double.
struct CapBuffers {
  char* x = nullptr;
  char* scratch = nullptr;
  int64_t stride = 0;
};

// Caps every matrix in place.
void cap_spectrum(const BatchWork& work, MatrixShape shape, int sketch, const CapBuffers& buffers);

}  // namespace muster::kernels::cpu
