// Multi-tensor kernels on the device: momentum and pack, apply, AdamW, Lion. They give the same bits as kernels/cpu.
#pragma once

#include <span>

#include "kernels/cuda/runtime/queue.h"
#include "kernels/kernel_calls.h"

namespace muster::kernels::cuda {

// Each enqueues one kernel, which reads its options and blocks from the argument table.
void momentum_pack(const MomentumOptions& options, std::span<const MomentumBlock> blocks, Queue& queue);
void apply(const ApplyOptions& options, std::span<const ApplyBlock> blocks, Queue& queue);
void adamw(const AdamWOptions& options, std::span<const ElementRange> ranges, Queue& queue);
void lion(const LionOptions& options, std::span<const ElementRange> ranges, Queue& queue);
void subtract_from_weights(WeightForm form, std::span<const ChangeBlock> blocks, Queue& queue);

}  // namespace muster::kernels::cuda
