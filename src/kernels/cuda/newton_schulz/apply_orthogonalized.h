// Apply straight from what a orthogonalize leaves: the bits of orthogonalize, then apply, without the wire in between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/cuda/newton_schulz/orthogonalizer.h"
#include "kernels/cuda/runtime/launch_queue.h"
#include "kernels/kernels.h"

namespace muster::kernels::cuda {

// Rows and columns of a matrix's update. What `block` says of the update's place does not count.
struct MatrixBlock {
  size_t matrix = 0;
  int64_t row = 0;
  int64_t column = 0;
  ApplyBlock block;
};

// The rows of matrices that blocks of updates are. Nothing if one of them is something else.
std::optional<std::vector<MatrixBlock>> in_matrices(const ApplyOptions& options, MatrixShape shape,
                                                    std::span<const UpdateMatrix> batch,
                                                    std::span<const ApplyBlock> blocks);

// Those blocks that are of the matrices at hand.
void apply(const ApplyOptions& options, const Orthogonalized& orthogonalized, std::span<const MatrixBlock> blocks,
           LaunchQueue& queue);

}  // namespace muster::kernels::cuda
