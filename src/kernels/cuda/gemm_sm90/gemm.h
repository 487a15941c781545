// Batched GEMMs of 16-bit matrices with f32 sums: on the tensor cores of Hopper (sm_90a) by a kernel of our own, or by
// cuBLAS.
//
// The result for a matrix does not depend on the batch it is in. docs/explanation/kernels.md describes the kernel and
// its speed.
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/launch_queue.h"

namespace muster::kernels::cuda {

class Cublas;

enum class Half : uint8_t { kBf16, kF16 };

// A batch of row-major matrices on the device. `pitch` is the distance between rows and `stride` between matrices, in
// elements: multiples of 8. Data is 16-byte aligned.
struct Matrices {
  void* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t pitch = 0;
  int64_t stride = 0;
};

// The kernel reads them on the device, so that a captured graph can change them.
struct Scalars {
  float alpha = 1;
  float beta = 0;
};

// D = alpha A B + beta C.
struct Gemm {
  Half type = Half::kBf16;
  // An operand of stride 0 is one matrix, which the whole batch shares.
  Matrices a;  // rows x inner, or inner x rows if transposed
  Matrices b;  // inner x columns, or columns x inner if transposed
  Matrices c;  // without data, nothing is added
  Matrices d;  // must not be an operand
  bool a_transposed = false;
  bool b_transposed = false;
  bool symmetric = false;  // D and C are symmetric: only tiles on and below the diagonal are computed
  int64_t batch = 0;
  const Scalars* scalars = nullptr;  // on the device
  int64_t scalars_stride = 0;        // between matrices; 0 if all have the same

  // If it has data, receives D + identity->beta I. Needs a symmetric D, and C.
  Matrices d_and_identity{};
  const Scalars* identity = nullptr;
  // If not null, receives sums of squares of D's rows, as rounded, per 128 columns: matrix m, columns 128 t to
  // 128 t + 127 and row i at (m * ceil(columns / 128) + t) * rows + i. Needs a general D.
  float* row_squares = nullptr;
  // If it has data, receives what rounding D lost: alpha A B - D, rounded to the half type. The sum of both has about
  // twice D's mantissa. Needs a general D, an A that is not transposed, and no C. Meant for a D of few rows.
  Matrices d_remainder{};
};

// True if the device is sm_90 and this build was compiled for sm_90a.
bool gemm_available(int device);

// Enqueues a GEMM, by our kernel or by `cublas` if it is given. cuBLAS writes D alone; where a remainder is asked for
// as well, a kernel for all GPUs (newton_schulz/gemm_with_remainder.h) replaces it. Throws InvalidArgument for operands
// that do not fit and for variants without a kernel, and DeviceError.
void multiply(const Gemm& gemm, LaunchQueue& queue, Cublas* cublas = nullptr);

// Floating-point operations that our kernel executes, padding of tiles included.
double flops(const Gemm& gemm);

}  // namespace muster::kernels::cuda
