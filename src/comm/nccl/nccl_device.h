// RAII wrappers of the CUDA objects that a communicator owns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cuda_runtime_api.h>

#include "kernels/cuda/runtime/cuda_check.h"

namespace muster::comm::nccl {

using kernels::cuda::check;

// Temporarily makes a device the calling thread's current one; restores the previous one on destruction.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    if (before_ != device) check(cudaSetDevice(device), "cudaSetDevice");
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  ~DeviceScope() { cudaSetDevice(before_); }

 private:
  int before_ = 0;
};

// A non-blocking stream.
class CudaStream {
 public:
  CudaStream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  ~CudaStream() { cudaStreamDestroy(stream_); }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class CudaEvent {
 public:
  CudaEvent() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags"); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  ~CudaEvent() { cudaEventDestroy(event_); }

  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  bool done() const {
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaErrorNotReady) return false;
    check(state, "cudaEventQuery");
    return true;
  }

 private:
  cudaEvent_t event_ = nullptr;
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
