// What kernels are given, in device memory: filled on the host, copied in the order of a stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cuda_runtime_api.h>
#include <span>

#include "kernels/cuda/check.h"

namespace muster::kernels::cuda {

// A ring. What was put in stays until the ring has come round, and by then the stream has been waited for.
class Table {
 public:
  explicit Table(int64_t bytes = int64_t{4} << 20) : bytes_(bytes) {
    check(cudaMallocHost(reinterpret_cast<void**>(&host_), static_cast<size_t>(bytes)), "table");
    check(cudaMalloc(reinterpret_cast<void**>(&device_), static_cast<size_t>(bytes)), "table");
  }
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  ~Table() {
    cudaFreeHost(host_);
    cudaFree(device_);
  }

  // Where the values will be on the device for what the stream does next.
  template <typename T>
  const T* put(std::span<const T> values, cudaStream_t stream) {
    constexpr int64_t kAlign = 16;
    const auto size = static_cast<int64_t>(values.size_bytes());
    if (size > bytes_)
      throw InvalidArgument("table: " + std::to_string(size) + " bytes in one of " + std::to_string(bytes_));
    if (at_ + size > bytes_) {
      check(cudaStreamSynchronize(stream), "table");
      at_ = 0;
    }
    std::memcpy(host_ + at_, values.data(), static_cast<size_t>(size));
    check(cudaMemcpyAsync(device_ + at_, host_ + at_, static_cast<size_t>(size), cudaMemcpyHostToDevice, stream),
          "table");
    const auto* const where = reinterpret_cast<const T*>(device_ + at_);
    at_ += (size + kAlign - 1) / kAlign * kAlign;
    return where;
  }

 private:
  int64_t bytes_;
  int64_t at_ = 0;
  std::byte* host_ = nullptr;
  std::byte* device_ = nullptr;
};

}  // namespace muster::kernels::cuda
