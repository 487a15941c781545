#include "kernels/cuda/runtime/cuda_check.h"
#include "kernels/cuda/runtime/graph_copies.h"

namespace muster::kernels::cuda {

namespace {

constexpr int kThreads = 256;

// This replay's slot, until store_results_kernel counts the replay.
__device__ int64_t* slot_of(const SlotAddresses& slots, const ReplaySlots& replay) {
  return static_cast<int64_t*>(slots.at[replay.slots[*replay.replays % kStepSlots]]);
}

__global__ void fetch_arguments_kernel(int64_t* to, const SlotAddresses from, int64_t words, const ReplaySlots replay) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < words) to[i] = slot_of(from, replay)[i];
}

// One thread block: it counts the replay after all of its threads have looked up the slot.
__global__ void store_results_kernel(const SlotAddresses to, const int64_t* from, int64_t words,
                                     const ReplaySlots replay) {
  int64_t* const slot = slot_of(to, replay);
  for (int64_t i = threadIdx.x; i < words; i += kThreads) slot[i] = from[i];
  __syncthreads();
  if (threadIdx.x == 0) ++*replay.replays;
}

int64_t words_of(int64_t bytes) { return bytes / static_cast<int64_t>(sizeof(int64_t)); }

}  // namespace

// Loads both kernels now: loading one during a capture may wait for the device.
ReplayCounter::ReplayCounter(cudaStream_t stream)
    : slots_(allocate_pinned<int64_t>(kStepSlots, "replays")), replays_(allocate_on_device<int64_t>(1, "replays")) {
  restart(stream);
  cudaFuncAttributes attributes;
  check(cudaFuncGetAttributes(&attributes, fetch_arguments_kernel), "fetch arguments");
  check(cudaFuncGetAttributes(&attributes, store_results_kernel), "store results");
}

void ReplayCounter::restart(cudaStream_t stream) {
  launched_ = 0;
  check(cudaMemsetAsync(replays_.get(), 0, sizeof(int64_t), stream), "replays");
}

void fetch_arguments(void* to, const SlotAddresses& from, int64_t bytes, const ReplaySlots& replay,
                     cudaStream_t stream) {
  const int64_t words = words_of(bytes);
  if (words == 0) return;
  const auto blocks = static_cast<unsigned>((words + kThreads - 1) / kThreads);
  fetch_arguments_kernel<<<blocks, kThreads, 0, stream>>>(static_cast<int64_t*>(to), from, words, replay);
  check(cudaGetLastError(), "fetch arguments");
}

void store_results(const SlotAddresses& to, const void* from, int64_t bytes, const ReplaySlots& replay,
                   cudaStream_t stream) {
  store_results_kernel<<<1, kThreads, 0, stream>>>(to, static_cast<const int64_t*>(from), words_of(bytes), replay);
  check(cudaGetLastError(), "store results");
}

}  // namespace muster::kernels::cuda
