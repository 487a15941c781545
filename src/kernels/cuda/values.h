// Looking at values on the device: exact sums of squares, and what is not finite.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/queue.h"
#include "kernels/kernels.h"

namespace muster::kernels::cuda {

// Adds to the kWords words of a SumOfSquares. Every 2^14 values add less than 2^33 to a word: 2^32 values on each of
// 2^12 ranks can be summed word by word.
void sum_squares(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* words, Queue& queue);
void count_non_finite(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* count, Queue& queue);
void zero_non_finite(Dtype dtype, std::span<const ValueBlock> blocks, Queue& queue);

}  // namespace muster::kernels::cuda
