// Checks of gradients on the device: exact sums of squares, NaN and infinity, and fingerprints.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/runtime/launch_queue.h"
#include "kernels/kernel_calls.h"

namespace muster::kernels::cuda {

// Adds to the kWords words of a SumOfSquares without propagating carries. 2^14 values, or a block with fewer, add less
// than 2^33 to a word: words hold sums of 2^43 values, over all ranks that add up theirs.
void sum_squares(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* words, LaunchQueue& queue);
void find_non_finite(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* found, LaunchQueue& queue);
void fingerprint(Dtype dtype, std::span<const FingerprintRange> ranges, int64_t* words, int64_t total,
                 LaunchQueue& queue);
void zero_non_finite(Dtype dtype, std::span<const ValueBlock> blocks, LaunchQueue& queue);

}  // namespace muster::kernels::cuda
