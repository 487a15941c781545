// NorMuon on orthogonal factors of one shape.
#pragma once

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/thread_pool.h"

namespace muster::kernels::cpu {

struct NorMuonMatrix {
  const float* o = nullptr;   // the orthogonal factor, contiguous
  float* variance = nullptr;  // one per line; starts at 0
  void* output = nullptr;     // in the wire dtype; may be `o` if that is f32
};

struct NorMuonBatch {
  NorMuonOptions options{};
  Dtype wire = Dtype::kBf16;
  MatrixShape shape{};
  std::span<const NorMuonMatrix> matrices{};
  Workspace workspace{};
};

// Bytes of workspace per matrix.
int64_t normuon_matrix_bytes(MatrixShape shape);

// Computes means of squares and factors in double, stores variances in f32, and multiplies O by its factors in f32,
// rounded once to the wire dtype. The shape alone decides the order of every sum.
void normuon(const Elementwise& elementwise, ThreadPool& pool, const NorMuonBatch& batch);

}  // namespace muster::kernels::cpu
