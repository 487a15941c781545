// Multi-tensor kernels on the device: momentum and pack, apply, AdamW, Lion. They give the same bits as kernels/cpu.
#pragma once

#include <span>

#include "kernels/cuda/runtime/launch_queue.h"
#include "kernels/kernel_calls.h"

namespace muster::kernels::cuda {

// Each enqueues one kernel, which reads its options and blocks from the argument table.
void momentum_pack(const MomentumOptions& options, std::span<const MomentumBlock> blocks, LaunchQueue& queue);
void apply(const ApplyOptions& options, std::span<const ApplyBlock> blocks, LaunchQueue& queue);
void adamw(const AdamWOptions& options, std::span<const ElementRange> ranges, LaunchQueue& queue);
void lion(const LionOptions& options, std::span<const ElementRange> ranges, LaunchQueue& queue);
void subtract_from_weights(WeightForm form, std::span<const ChangeBlock> blocks, LaunchQueue& queue);

}  // namespace muster::kernels::cuda
