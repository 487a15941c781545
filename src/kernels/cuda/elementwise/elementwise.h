// Kernels over elements on the device. Each call enqueues one kernel, which reads its options and blocks from the
// argument table. See kernels.h for what they compute; they give the same bits as kernels/cpu.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/runtime/launch_queue.h"
#include "kernels/kernel_calls.h"

namespace muster::kernels::cuda {

// elementwise.cu
void momentum_pack(const MomentumOptions& options, std::span<const MomentumBlock> blocks, LaunchQueue& queue);
void apply(const ApplyOptions& options, std::span<const ApplyBlock> blocks, LaunchQueue& queue);
void adamw(const AdamWOptions& options, std::span<const ElementRange> ranges, LaunchQueue& queue);
void lion(const LionOptions& options, std::span<const ElementRange> ranges, LaunchQueue& queue);
void subtract_from_weights(WeightForm form, std::span<const ChangeBlock> blocks, LaunchQueue& queue);

// copies.cu
void copy(int64_t width, std::span<const CopyBlock> blocks, LaunchQueue& queue);  // elements of 2, 4 or 8 bytes
void add(Dtype dtype, std::span<const AddBlock> blocks, LaunchQueue& queue);
void divide(std::span<const DivideRange> ranges, LaunchQueue& queue);

// gradient_checks.cu. sum_squares() adds to the kWords words of a SumOfSquares without propagating carries. 2^14
// values, or a block with fewer, add less than 2^33 to a word: words hold sums of 2^43 values, over all ranks that add
// up theirs.
void sum_squares(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* words, LaunchQueue& queue);
void find_non_finite(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* found, LaunchQueue& queue);
void fingerprint(Dtype dtype, std::span<const FingerprintRange> ranges, int64_t* words, int64_t total,
                 LaunchQueue& queue);
void zero_non_finite(Dtype dtype, std::span<const ValueBlock> blocks, LaunchQueue& queue);

}  // namespace muster::kernels::cuda
