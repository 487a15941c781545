// CUDA's streams, events and memory as objects that are released with their owner, and a guard for the current device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <deque>
#include <memory>

#include "kernels/cuda/runtime/cuda_check.h"

namespace muster::kernels::cuda {

// Makes a device current for the calling thread; restores the previous one on destruction. Streams belong to the device
// that is current when they are created, and launches need that device to be current.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check(cudaGetDevice(&before_), "device");
    if (before_ != device) check(cudaSetDevice(device), "device");
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() { cudaSetDevice(before_); }

 private:
  int before_ = 0;
};

// A stream that does not synchronize with the default stream.
class OwnedStream {
 public:
  OwnedStream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "stream"); }
  OwnedStream(const OwnedStream&) = delete;
  OwnedStream& operator=(const OwnedStream&) = delete;
  ~OwnedStream() { cudaStreamDestroy(stream_); }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class OwnedEvent {
 public:
  explicit OwnedEvent(unsigned flags = cudaEventDisableTiming) {
    check(cudaEventCreateWithFlags(&event_, flags), "event");
  }
  OwnedEvent(const OwnedEvent&) = delete;
  OwnedEvent& operator=(const OwnedEvent&) = delete;
  ~OwnedEvent() { cudaEventDestroy(event_); }
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Events by number, created on first use. Every step uses them again.
class EventPool {
 public:
  explicit EventPool(unsigned flags = cudaEventDisableTiming) : flags_(flags) {}
  cudaEvent_t at(size_t number) {
    while (events_.size() <= number) events_.emplace_back(flags_);
    return events_[number];
  }
  size_t size() const { return events_.size(); }

 private:
  unsigned flags_;
  std::deque<OwnedEvent> events_;
};

struct FreeOnHost {
  void operator()(void* data) const { cudaFreeHost(data); }
};
struct FreeOnDevice {
  void operator()(void* data) const { cudaFree(data); }
};
template <typename T>
using PinnedArray = std::unique_ptr<T[], FreeOnHost>;
template <typename T>
using DeviceArray = std::unique_ptr<T[], FreeOnDevice>;

template <typename T>
PinnedArray<T> allocate_pinned(int64_t count, const char* what) {
  void* data = nullptr;
  check(cudaMallocHost(&data, static_cast<size_t>(count) * sizeof(T)), what);
  return PinnedArray<T>(static_cast<T*>(data));
}

template <typename T>
DeviceArray<T> allocate_on_device(int64_t count, const char* what) {
  void* data = nullptr;
  check(cudaMalloc(&data, static_cast<size_t>(count) * sizeof(T)), what);
  return DeviceArray<T>(static_cast<T*>(data));
}

}  // namespace muster::kernels::cuda
