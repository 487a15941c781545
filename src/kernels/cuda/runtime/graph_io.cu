#include "kernels/cuda/runtime/cuda_check.h"
#include "kernels/cuda/runtime/graph_io.h"

namespace muster::kernels::cuda {

namespace {

constexpr int kThreads = 256;

// Of this replay, until it is counted.
__device__ int64_t* slot_of(const Slots& slots, const Replays& replays) {
  return static_cast<int64_t*>(slots.at[replays.slots[*replays.count % kSlots]]);
}

__global__ void carry_in_kernel(int64_t* to, const Slots from, int64_t words, const Replays replays) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < words) to[i] = slot_of(from, replays)[i];
}

// One block: it counts the replay when all of its threads have looked.
__global__ void carry_out_kernel(const Slots to, const int64_t* from, int64_t words, const Replays replays) {
  int64_t* const slot = slot_of(to, replays);
  for (int64_t i = threadIdx.x; i < words; i += kThreads) slot[i] = from[i];
  __syncthreads();
  if (threadIdx.x == 0) ++*replays.count;
}

int64_t words_of(int64_t bytes) { return bytes / static_cast<int64_t>(sizeof(int64_t)); }

}  // namespace

void carry_in(void* to, const Slots& from, int64_t bytes, const Replays& replays, cudaStream_t stream) {
  const int64_t words = words_of(bytes);
  if (words == 0) return;
  const auto blocks = static_cast<unsigned>((words + kThreads - 1) / kThreads);
  carry_in_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<int64_t*>(to), from, words, replays);
  check(cudaGetLastError(), "carry in");
}

void carry_out(const Slots& to, const void* from, int64_t bytes, const Replays& replays, cudaStream_t stream) {
  carry_out_kernel<<<1, kThreads, 0, stream>>>(to, static_cast<const int64_t*>(from), words_of(bytes), replays);
  check(cudaGetLastError(), "carry out");
}

void load_carriers() {
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, carry_in_kernel), "carry in");
  check(cudaFuncGetAttributes(&attributes, carry_out_kernel), "carry out");
}

}  // namespace muster::kernels::cuda
