// Looking at values on the device: exact sums of squares, and what is not finite.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/runtime/launch_queue.h"
#include "kernels/kernels.h"

namespace muster::kernels::cuda {

// Adds to the kWords words of a SumOfSquares. Limbs are not carried, but 2^14 values (or a block, if that has less) add
// less than 2^33 to a word: there is room for 2^43 values, over all ranks whose words are summed.
void sum_squares(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* words, LaunchQueue& queue);
void find_non_finite(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* found, LaunchQueue& queue);
void fingerprint(Dtype dtype, std::span<const PrintRange> ranges, int64_t* words, int64_t total, LaunchQueue& queue);
void zero_non_finite(Dtype dtype, std::span<const ValueBlock> blocks, LaunchQueue& queue);

}  // namespace muster::kernels::cuda
