// Newton-Schulz on the device: the standard form in bf16, the Gram form in fp16, sums in f32.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>
#include <memory>
#include <span>

#include "kernels/kernels.h"

namespace muster::kernels::cuda {

enum class Form : uint8_t { kStandard, kGram };

// The Gram form has fewer FLOPs for matrices at least twice as long as wide. It rounds more than the standard form, so
// coefficients take it only if their result stays bounded when every step's input is off by 3 %: those of
// polar_express (safety 1.02), cans and aol4 run away. A function of shape and coefficients alone.
Form form_of(MatrixShape shape, const Coefficients& coefficients);

// What X is divided by, beside its norm: a little more than the set says, where rounding of a step in bf16 would let a
// singular value of 1 run away (cans, aol4).
double half_safety(const Coefficients& coefficients);

class Orthogonalizer {
 public:
  explicit Orthogonalizer(int device);
  ~Orthogonalizer();

  int64_t workspace(MatrixShape shape, int64_t batch) const;

  // Pointers of the batch and the workspace are on the device. Enqueues; input and output are contiguous, f32 or bf16.
  void run(const OrthogonalizeOptions& options, MatrixShape shape, std::span<const MatrixPair> batch,
           Workspace workspace, cudaStream_t stream);

 private:
  struct Lanes;
  std::unique_ptr<Lanes> lanes_;
};

// Floating-point operations executed for one matrix, tiles included.
double orthogonalize_flops(Form form, MatrixShape shape, int64_t steps);

}  // namespace muster::kernels::cuda
