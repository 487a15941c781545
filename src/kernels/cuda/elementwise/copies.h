// Copies, sums and divisions on the device.
#pragma once

#include <span>

#include "kernels/cuda/runtime/launch_queue.h"
#include "kernels/kernel_calls.h"

namespace muster::kernels::cuda {

void copy(int64_t width, std::span<const CopyBlock> blocks, LaunchQueue& queue);  // elements of 2, 4 or 8 bytes
void add(Dtype dtype, std::span<const AddBlock> blocks, LaunchQueue& queue);
void divide(std::span<const DivideRange> ranges, LaunchQueue& queue);

}  // namespace muster::kernels::cuda
