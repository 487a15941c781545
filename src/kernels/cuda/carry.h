// Some KB between pinned host memory and the device.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

namespace muster::kernels::cuda {

// Whole 8 bytes. The device reads or writes the host's memory itself: a copy of some ten KB would take the host several
// times as long to enqueue.
void carry(void* to, const void* from, int64_t bytes, cudaStream_t stream);

}  // namespace muster::kernels::cuda
