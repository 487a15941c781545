#include "kernels/cuda/carry.h"
#include "kernels/cuda/check.h"

namespace muster::kernels::cuda {

namespace {

constexpr int kThreads = 256;

__global__ void carry_kernel(int64_t* to, const int64_t* from, int64_t words) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < words) to[i] = from[i];
}

}  // namespace

void carry(void* to, const void* from, int64_t bytes, cudaStream_t stream) {
  const int64_t words = bytes / static_cast<int64_t>(sizeof(int64_t));
  if (words == 0) return;
  const auto blocks = static_cast<unsigned>((words + kThreads - 1) / kThreads);
  carry_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<int64_t*>(to), static_cast<const int64_t*>(from), words);
  check(cudaGetLastError(), "carry");
}

}  // namespace muster::kernels::cuda
