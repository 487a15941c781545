// RAII wrappers of the CUDA objects that a communicator owns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cuda_runtime_api.h>

#include "kernels/cuda/runtime/cuda_handles.h"

namespace muster::comm::nccl {

using kernels::cuda::check;
using kernels::cuda::DeviceGuard;
using kernels::cuda::OwnedStream;

// An event that the host asks whether it is done, without waiting.
class CudaEvent {
 public:
  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  bool done() const {
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) return false;
    check(state, "cudaEventQuery");
    return true;
  }

 private:
  kernels::cuda::OwnedEvent event_;
};

// Pinned memory, mapped for the device and initialised to zeros.
class PinnedBytes {
 public:
  explicit PinnedBytes(int64_t bytes) {
    check(cudaHostAlloc(&data_, static_cast<size_t>(bytes), cudaHostAllocPortable | cudaHostAllocMapped),
          "cudaHostAlloc");
    std::memset(data_, 0, static_cast<size_t>(bytes));
  }
  PinnedBytes(const PinnedBytes&) = delete;
  PinnedBytes& operator=(const PinnedBytes&) = delete;
  ~PinnedBytes() { cudaFreeHost(data_); }
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
};

}  // namespace muster::comm::nccl
