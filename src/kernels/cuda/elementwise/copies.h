// Copies, sums and divisions on the device.
#pragma once

#include <span>

#include "kernels/cuda/runtime/queue.h"
#include "kernels/kernel_calls.h"

namespace muster::kernels::cuda {

void copy(int64_t width, std::span<const CopyBlock> blocks, Queue& queue);  // elements of 2, 4 or 8 bytes
void add(Dtype dtype, std::span<const AddBlock> blocks, Queue& queue);
void divide(std::span<const DivideRange> ranges, Queue& queue);

}  // namespace muster::kernels::cuda
