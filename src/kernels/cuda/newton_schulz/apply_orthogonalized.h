// Applies updates directly from orthogonal factors in half precision: the same bits as orthogonalizing in place and
// then applying, without rewriting the matrices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/cuda/newton_schulz/orthogonalized.h"
#include "kernels/cuda/runtime/launch_queue.h"
#include "kernels/kernel_calls.h"

namespace muster::kernels::cuda {

// A block of weights and its place in a matrix of the batch. The update pointer and stride of `block` are not read.
struct MatrixBlock {
  size_t matrix = 0;
  int64_t row = 0;
  int64_t column = 0;
  ApplyBlock block;
};

// Locates the updates of `blocks` in the matrices of the batch. Nothing if one of them is not a block of a matrix.
std::optional<std::vector<MatrixBlock>> matrix_blocks(const OrthogonalizeBatch& batch, const ApplyOptions& options,
                                                      std::span<const ApplyBlock> blocks);

// Applies those of `blocks` that lie in the matrices of `orthogonalized`.
void apply(const ApplyOptions& options, const Orthogonalized& orthogonalized, std::span<const MatrixBlock> blocks,
           LaunchQueue& queue);

}  // namespace muster::kernels::cuda
