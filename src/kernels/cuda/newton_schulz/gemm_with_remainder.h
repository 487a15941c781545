// A GEMM that also writes its remainder (Gemm::d_remainder), for GPUs without our GEMM: cuBLAS does not give away its
// f32 sums.
#pragma once

#include "kernels/cuda/gemm_sm90/gemm.h"

namespace muster::kernels::cuda {

// D = alpha A B and the remainder, for an A that is not transposed. Meant for few rows: tiles are small. The result for
// a matrix does not depend on the batch. Enqueues without checking operands.
void multiply_with_remainder(const Gemm& gemm, cudaStream_t stream);

}  // namespace muster::kernels::cuda
