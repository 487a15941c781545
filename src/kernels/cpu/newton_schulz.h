// Newton-Schulz in f32 on a batch of matrices of one shape.
#pragma once

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/thread_pool.h"

namespace muster::kernels::cpu {

enum class Form : uint8_t {
  kStandard,  // X <- (a I + b A + c A^2) X in every step, with A the Gram matrix of X
  kGram,      // iterates on the Gram matrix and multiplies X twice: fewer FLOPs if one side is longer
};

// The form depends on the shape alone.
Form form_of(MatrixShape shape);

struct NewtonSchulzOptions {
  Coefficients coefficients{};
  double eps = 0;  // X is divided by safety ||X||_F + eps. With 0 its scale does not matter, and zero stays zero
  Dtype input = Dtype::kBf16;  // f32 or bf16
  Dtype output = Dtype::kF32;  // f32 or bf16
};

// One matrix of a batch, contiguous, row-major. The output may be the input if their dtypes are equal.
struct MatrixPair {
  const void* input = nullptr;
  void* output = nullptr;
  double* gram_error = nullptr;  // as in UpdateMatrix; of f32 values
};

struct NewtonSchulzContext {
  const Elementwise& elementwise;
  ThreadPool& pool;
  Form form;
};

// Bytes of workspace for one matrix. Workspace for as many matrices as threads lets each thread work on its own matrix.
int64_t newton_schulz_matrix_bytes(Form form, MatrixShape shape);

void newton_schulz(const NewtonSchulzContext& context, const NewtonSchulzOptions& options, MatrixShape shape,
                   std::span<const MatrixPair> batch, Workspace workspace);

// FLOPs of the matrix products for one matrix.
double newton_schulz_flops(Form form, MatrixShape shape, int64_t steps);

}  // namespace muster::kernels::cpu
