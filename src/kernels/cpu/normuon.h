// NorMuon's scale on a batch of orthogonalized matrices of one shape.
#pragma once

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/kernels.h"

namespace muster::kernels::cpu {

struct NorMuonOptions {
  LineAxis axis = LineAxis::kRows;  // one variance a row, or one a column
  double beta2 = 0.95;
  double eps = 1e-8;
  Dtype wire = Dtype::kBf16;
};

struct NorMuonMatrix {
  const float* o = nullptr;   // orthogonalized, contiguous
  float* variance = nullptr;  // one a line; starts at 0
  void* output = nullptr;     // in wire dtype, rounded once; may be o where the wire is f32
};

int64_t normuon_matrix_bytes(MatrixShape shape);

// v_i = mean_j O_ij^2 and the factors in double, V in f32, O times its factor in f32, rounded to wire once. Every sum
// runs in an order that only the shape decides.
void normuon(const Elementwise& elementwise, ThreadPool& pool, const NorMuonOptions& options, MatrixShape shape,
             std::span<const NorMuonMatrix> batch, Workspace workspace);

}  // namespace muster::kernels::cpu
