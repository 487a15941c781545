#include <algorithm>
#include <cstring>
#include <string>

#include "base/alignment.h"
#include "kernels/cuda/runtime/cuda_check.h"
#include "kernels/cuda/runtime/direct_arguments.h"
#include "muster/error.h"

namespace muster::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kMostWords = 248;  // a kernel's parameters have 4 KB

struct Words {
  uint4 at[kMostWords];
};

__global__ void write_arguments_kernel(uint4* to, int count, const __grid_constant__ Words from) {
  const int i = static_cast<int>(threadIdx.x);
  if (i < count) to[i] = from.at[i];
}

}  // namespace

// Loads the kernel now: loading one during a capture may wait for the device.
DirectArguments::DirectArguments() {
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, write_arguments_kernel), "write arguments");
}

void DirectArguments::start(std::byte* device, int64_t bytes) {
  device_ = device;
  capacity_ = bytes;
  flushed_ = 0;
  host_.clear();
}

const std::byte* DirectArguments::append(const void* data, int64_t bytes) {
  const auto before = static_cast<int64_t>(host_.size());
  const int64_t position = flushed_ + before;
  const int64_t padded = base::round_up(bytes, kAlign);
  if (position + padded > capacity_) {
    throw Internal("arguments of " + std::to_string(position + padded) + " bytes, expected at most " +
                   std::to_string(capacity_));
  }
  host_.resize(static_cast<size_t>(before + padded));
  std::memcpy(host_.data() + before, data, static_cast<size_t>(bytes));
  return device_ + position;
}

void DirectArguments::flush(cudaStream_t stream) {
  const auto bytes = static_cast<int64_t>(host_.size());
  for (int64_t at = 0; at < bytes;) {
    Words words;
    const int64_t part = std::min<int64_t>(bytes - at, sizeof(words));
    std::memcpy(words.at, host_.data() + at, static_cast<size_t>(part));
    auto* const to = reinterpret_cast<uint4*>(device_ + flushed_ + at);
    write_arguments_kernel<<<1, kThreads, 0, stream>>>(to, static_cast<int>(part / kAlign), words);
    at += part;
  }
  if (bytes > 0) check(cudaGetLastError(), "write arguments");
  flushed_ += bytes;
  host_.clear();
}

}  // namespace muster::kernels::cuda
