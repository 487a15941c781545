// Device memory for tests, and a reason to skip them.
#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/runtime/cuda_check.h"

namespace muster::kernels::cuda {

// Empty if tests can run on device 0.
inline std::string why_no_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return std::string("no GPU: ") + cudaGetErrorString(error);
  return count == 0 ? "no GPU" : "";
}

class DeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string reason = why_no_device(); !reason.empty()) GTEST_SKIP() << reason;
  }
};

template <typename T>
class DeviceVector {
 public:
  explicit DeviceVector(size_t count) : count_(count) {
    check(cudaMalloc(&data_, count * sizeof(T) + 1), "cudaMalloc");
    check(cudaMemset(data_, 0xff, count * sizeof(T)), "cudaMemset");  // NaN where nothing is written
  }
  explicit DeviceVector(const std::vector<T>& values) : DeviceVector(values.size()) {
    check(cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  DeviceVector(const DeviceVector&) = delete;
  DeviceVector& operator=(const DeviceVector&) = delete;
  ~DeviceVector() { cudaFree(data_); }

  T* data() const { return static_cast<T*>(data_); }
  std::vector<T> values() const {
    std::vector<T> out(count_);
    check(cudaMemcpy(out.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return out;
  }

 private:
  void* data_ = nullptr;
  size_t count_;
};

}  // namespace muster::kernels::cuda
