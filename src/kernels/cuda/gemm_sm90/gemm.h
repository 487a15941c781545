// Batched products of 16-bit matrices with f32 accumulation, on the tensor cores of Hopper (sm_90a), or by cuBLAS.
//
// The result for a matrix does not depend on the batch it is in. docs/kernels.md says how they are made and what was
// measured.
#pragma once

#include <cstdint>

#include "kernels/cuda/runtime/launch_queue.h"

namespace muster::kernels::cuda {

class Cublas;

enum class Half : uint8_t { kBf16, kF16 };

// `batch` matrices: rows are `pitch` elements apart, a multiple of 8, and matrices `stride`; data is 16-byte aligned.
struct Matrices {
  void* data = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t pitch = 0;
  int64_t stride = 0;
};

// Read on the device when the product runs, so that a captured graph can change them.
struct Scalars {
  float alpha = 1;
  float beta = 0;
};

// D = alpha A B + beta C.
struct Product {
  Half type = Half::kBf16;
  Matrices a;  // rows x inner, or inner x rows if transposed
  Matrices b;  // inner x columns if plain, or columns x inner if transposed
  Matrices c;  // no data: none
  Matrices d;  // must not be an operand
  bool a_transposed = false;
  bool b_transposed = false;
  bool symmetric = false;  // D and C are: only tiles on and below the diagonal are computed
  int64_t batch = 0;
  const Scalars* scalars = nullptr;  // on the device
  int64_t scalars_stride = 0;        // from a matrix to the next; 0: all have the same

  // Symmetric ones with C can write D + beta I of other scalars too, where there is data.
  Matrices d_and_identity;
  const Scalars* identity = nullptr;
  // General ones can sum the squares of D's rows, as rounded, within each tile's 128 columns: of matrix m, tile t and
  // row i at (m * tiles + t) * rows + i.
  float* row_squares = nullptr;
};

// This device has what it takes.
bool products_available(int device);

// Throws InvalidArgument for operands that do not fit and DeviceError.
void multiply(const Product& product, LaunchQueue& queue, Cublas* instead = nullptr);  // of our own

// Floating-point operations executed, tiles included.
double flops(const Product& product);

}  // namespace muster::kernels::cuda
