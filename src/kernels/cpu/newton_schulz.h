// Newton-Schulz in f32 on a batch of matrices of one shape.
#pragma once

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/kernels.h"

namespace muster::kernels::cpu {

enum class Form : uint8_t {
  kStandard,  // X <- (a I + b A + c A^2) X every step
  kGram,      // iterates on the Gram matrix and multiplies X twice: fewer FLOPs where one side is longer
};

// The only thing that decides the form.
Form form_of(MatrixShape shape);

struct NewtonSchulzOptions {
  Coefficients coefficients{};
  double eps = 0;  // X / (safety ||X||_F + eps). 0: the scale of the gradient does not matter. Zero stays zero
  Dtype input = Dtype::kBf16;  // f32 or bf16, as the next
  Dtype output = Dtype::kF32;  // f32 where NorMuon follows
};

// One matrix of a batch, contiguous, row-major. Output may be input where both are of one dtype.
struct MatrixPair {
  const void* input = nullptr;
  void* output = nullptr;
  double* gram_error = nullptr;  // as in UpdateMatrix; of f32 values
};

// Where the work is done, and by which form.
struct NewtonSchulzContext {
  const Elementwise& elementwise;
  ThreadPool& pool;
  Form form;
};

// Bytes of scratch for one matrix. Each further one up to the number of threads lets another thread work alone.
int64_t newton_schulz_matrix_bytes(Form form, MatrixShape shape);

void newton_schulz(const NewtonSchulzContext& context, const NewtonSchulzOptions& options, MatrixShape shape,
                   std::span<const MatrixPair> batch, Workspace workspace);

// Executed on one matrix, in BLAS.
double newton_schulz_flops(Form form, MatrixShape shape, int64_t steps);

}  // namespace muster::kernels::cpu
