/// \file
/// Newton-Schulz as a function, for programs that have an optimizer of their own.
///
///     std::vector<float> update(rows * columns);
///     muster::orthogonalize({.matrices = update.data(), .rows = rows, .columns = columns});
#pragma once

#include <cstdint>

#include "muster/group.h"
#include "muster/optimizer.h"
#include "muster/problem.h"

namespace muster {

/// Matrices of one shape, and how they are orthogonalized. Each matrix is contiguous and row-major, and the next one
/// follows it.
struct Orthogonalization {
  void* matrices = nullptr;   ///< the first matrix, on the device
  int64_t count = 1;          ///< how many matrices; may be 0
  int64_t rows = 0;           ///< per matrix; may be 0
  int64_t columns = 0;        ///< per matrix; may be 0
  Dtype dtype = Dtype::kF32;  ///< before and after: f32 or bf16
  /// The polynomials. \hideinitializer
  Coefficients coefficients = muster::coefficients("polar_express");
  Device device{};            ///< that holds the matrices and computes; no stream is the default stream
  int threads = 1;            ///< the most CPU threads; small matrices take fewer. A device does not read it
  void* workspace = nullptr;  ///< orthogonalize_workspace() bytes on the device, aligned to 256; read on a device only
};

/// Bytes of workspace on a device; 0 on the CPU, which allocates its own. Does not read matrices and workspace. Throws
/// InvalidArgument that names the field and its value.
int64_t orthogonalize_workspace(const Orthogonalization& call);

/// Replaces each matrix by its orthogonal factor, whose singular values are close to one. A matrix with NaN or infinity
/// becomes NaN, and a matrix of zeros stays zero. The bits depend on the matrix, the options and the kind of device
/// alone: not on the other matrices, nor on threads, streams or the place in memory.
///
/// The CPU computes in f32, and rounds once to bf16 if that is the dtype. On CUDA the products have operands of 16 bits
/// and sums in f32 (docs/explanation/kernels.md).
///
/// On CUDA it enqueues on Device::stream and returns. The stream may be capturing a graph, which then keeps the
/// addresses of matrices and workspace, and orthogonalizes at each replay what the matrices hold then. Any threads may
/// call it at the same time, with different matrices and workspaces.
///
/// Throws InvalidArgument that names the field and its value, before anything is changed, and DeviceError.
void orthogonalize(const Orthogonalization& call);

}  // namespace muster
