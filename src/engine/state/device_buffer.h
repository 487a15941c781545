// Memory for kernels, on the device that they compute on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/alignment.h"
#include "kernels/kernels.h"

namespace muster::engine {

// Owns its memory. The kernels must outlive it.
class DeviceBuffer {
 public:
  static constexpr int64_t kAlign = 64;  // sizes are rounded up to it

  DeviceBuffer() = default;
  DeviceBuffer(kernels::Kernels& kernels, int64_t bytes) : kernels_(&kernels), bytes_(base::round_up(bytes, kAlign)) {
    if (bytes_ > 0) data_ = static_cast<std::byte*>(kernels.allocate(bytes_));
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(kernels_, other.kernels_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ != nullptr) kernels_->release(data_);
  }

  std::byte* data() const { return data_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }
  int64_t size() const { return bytes_; }

 private:
  kernels::Kernels* kernels_ = nullptr;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace muster::engine
