// Updates of one shape as they lie in memory, in the wire dtype: their norms, and the conversions from and to the half
// type that the iterations work in.
#pragma once

#include <cstdint>

#include "kernels/cuda/newton_schulz/newton_schulz.h"
#include "kernels/cuda/newton_schulz/orthogonalized.h"
#include "kernels/cuda/runtime/launch_queue.h"
#include "kernels/kernel_calls.h"

namespace muster::kernels::cuda {

struct WireBatch {
  const UpdateMatrix* matrices = nullptr;  // on the device
  int64_t count = 0;
  MatrixShape shape{};
  Dtype wire = Dtype::kBf16;
  Form form = Form::kStandard;  // of the iterations
  bool is_x = false;            // the iterations read X from the wire, unconverted

  // The part of a launch's key that says which kernel it is.
  int64_t kind() const { return static_cast<int64_t>(form) * 16 + static_cast<int64_t>(wire); }
};

// Read by the kernel that computes FirstScalars.
struct NormSettings {
  double safety = 1;
  Coefficients::Step first;
};

// What find_norms() reads and writes, on the device.
struct NormBuffers {
  const NormSettings* settings = nullptr;
  double* sums = nullptr;  // norm_sums() per matrix
  // One per matrix: a power of two that X is multiplied with on its way into the iterations, so that neither X nor its
  // squares leave the range of the half type.
  float* factors = nullptr;
  FirstScalars* scalars = nullptr;  // one per matrix, for X times its factor
};

// Partial sums of squares per matrix.
int64_t norm_sums(MatrixShape shape);

void find_norms(const WireBatch& batch, const NormBuffers& buffers, LaunchQueue& queue);

// x = the matrices times their factors, in the half type.
void load_x(const WireBatch& batch, const float* factors, const Matrices& x, LaunchQueue& queue);

// Replaces the matrices by their orthogonal factors times NorMuon's factors, rounded once.
void write_wire(const WireBatch& batch, const Orthogonalized& orthogonalized, LaunchQueue& queue);

}  // namespace muster::kernels::cuda
