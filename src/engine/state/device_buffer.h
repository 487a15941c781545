// Memory for kernels, where they compute.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "kernels/kernels.h"

namespace muster::engine {

class DeviceBuffer {
 public:
  static constexpr int64_t kAlign = 64;

  DeviceBuffer() = default;
  DeviceBuffer(kernels::Kernels& kernels, int64_t bytes)
      : kernels_(&kernels), bytes_((bytes + kAlign - 1) / kAlign * kAlign) {
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
