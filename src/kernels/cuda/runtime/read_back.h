// Results that a step leaves in pinned host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <span>

#include "kernels/cuda/runtime/cuda_handles.h"
#include "kernels/cuda/runtime/graph_copies.h"

namespace muster::kernels::cuda {

// One pinned buffer per step slot. A step requests the bytes, copy() or store() enqueues the copy as its last work, and
// finish() says that the slot's results are this step's; the host reads them once the step is done.
class ReadBack {
 public:
  bool fits(int64_t bytes) const { return bytes <= capacity_; }
  // Replaces all buffers: no copy may be under way. Their addresses are in captured graphs; the caller drops these
  // first.
  void reserve(int64_t bytes);

  void restart() { bytes_ = 0; }
  void request(const void* device, int64_t bytes) {
    device_ = device;
    bytes_ = bytes;
  }
  void copy(int64_t slot, cudaStream_t stream) const;
  // To be captured: the same copy, as the last node.
  void store(const ReplaySlots& replay, cudaStream_t stream) const;

  void clear(int64_t slot) { results_[slot] = {}; }
  void finish(int64_t slot) { results_[slot] = {hosts_[slot].get(), static_cast<size_t>(bytes_)}; }
  std::span<const std::byte> results(int64_t slot) const { return results_[slot]; }

 private:
  int64_t capacity_ = 0;
  const void* device_ = nullptr;
  int64_t bytes_ = 0;  // 0: this step reads nothing back
  PinnedArray<std::byte> hosts_[kStepSlots];
  std::span<const std::byte> results_[kStepSlots];
};

}  // namespace muster::kernels::cuda
