// Fused multi-tensor loops on the device: momentum and pack, apply, AdamW, Lion. The same bits as kernels/cpu.
#pragma once

#include <cuda_runtime_api.h>
#include <span>

#include "kernels/cuda/table.h"
#include "kernels/kernels.h"

namespace muster::kernels::cuda {

// All enqueue one kernel that reads its options and blocks from the table.
void momentum_pack(const MomentumOptions& options, std::span<const MomentumBlock> blocks, Table& table,
                   cudaStream_t stream);
void apply(const ApplyOptions& options, std::span<const ApplyBlock> blocks, Table& table, cudaStream_t stream);
void adamw(const AdamWOptions& options, std::span<const ElementRange> ranges, Table& table, cudaStream_t stream);
void lion(const LionOptions& options, std::span<const ElementRange> ranges, Table& table, cudaStream_t stream);

}  // namespace muster::kernels::cuda
