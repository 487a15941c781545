// The first and the last node of a step's graph: copies between the device and the step's slot of pinned host memory.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

#include "kernels/async_device.h"
#include "kernels/cuda/runtime/cuda_handles.h"

namespace muster::kernels::cuda {

// Step n uses slot n % kStepSlots of pinned memory, so that the host can prepare a step while another one runs.
inline constexpr int64_t kStepSlots = StepResults::kStepsInFlight;

// One address per slot, for a kernel's arguments.
struct SlotAddresses {
  void* at[kStepSlots];
};

// A graph has the same arguments at every replay, yet each replay has its own slot. The host writes the slot of replay
// n to slots[n % kStepSlots] before it launches it; the device counts the replays that have ended.
struct ReplaySlots {
  int64_t* replays = nullptr;  // on the device
  int64_t* slots = nullptr;    // pinned
};

class ReplayCounter {
 public:
  explicit ReplayCounter(cudaStream_t stream);
  // The slot of the next replay. Call it before the launch.
  void announce(int64_t slot) { slots_[static_cast<size_t>(launched_++ % kStepSlots)] = slot; }
  // Counts from zero again. No replay may be under way.
  void restart(cudaStream_t stream);
  ReplaySlots slots() const { return {replays_.get(), slots_.get()}; }

 private:
  PinnedArray<int64_t> slots_;
  DeviceArray<int64_t> replays_;
  int64_t launched_ = 0;
};

// To be captured as a graph's first and last node. `bytes` are a multiple of 8, some KB: the device accesses the host's
// memory itself. store_results() also counts the replay.
void fetch_arguments(void* to, const SlotAddresses& from, int64_t bytes, const ReplaySlots& replay,
                     cudaStream_t stream);
void store_results(const SlotAddresses& to, const void* from, int64_t bytes, const ReplaySlots& replay,
                   cudaStream_t stream);

}  // namespace muster::kernels::cuda
