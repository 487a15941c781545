// What a step's kernels read: pointers, strides and hyperparameters, in one table in device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cuda_runtime_api.h>
#include <span>
#include <vector>

#include "base/alignment.h"
#include "kernels/cuda/runtime/cuda_handles.h"
#include "kernels/cuda/runtime/graph_copies.h"

namespace muster::kernels::cuda {

// One table on the device, and one pinned table on the host per step slot. Arguments have the same place in all of
// them: [0, used()) is filled, in the order of the uploads, each on kAlign bytes.
class ArgumentTable {
 public:
  static constexpr int64_t kAlign = 16;

  ArgumentTable() { grow(kFirstCapacity); }

  // Starts an empty table on the host, in this step's slot. Earlier copies from the slot must be done.
  void start(int64_t slot) {
    slot_ = slot;
    used_ = 0;
  }
  int64_t capacity() const { return capacity_; }
  int64_t used() const { return used_; }
  bool fits(int64_t bytes) const { return used_ + bytes <= capacity_; }
  bool overflowed() const { return used_ > capacity_; }
  void fill_up() { used_ = capacity_; }

  // Appends on the host. Returns the place on the device, which has the bytes only after copy() or fetch(). Where they
  // do not fit, overflowed() is true from now on and the returned place must not be used.
  std::byte* append(const void* data, int64_t bytes) {
    const int64_t position = used_;
    used_ += base::round_up(bytes, kAlign);
    if (overflowed()) return device_.get();
    std::memcpy(host() + position, data, static_cast<size_t>(bytes));
    return device_.get() + position;
  }
  // [position, used()) on the host.
  std::span<const std::byte> appended(int64_t position) const {
    return {host() + position, static_cast<size_t>(used_ - position)};
  }
  // Enqueues the copy of `bytes` that append() placed there.
  void copy(std::byte* device, int64_t bytes, cudaStream_t stream) const;
  // To be captured: copies the first `bytes` of the replay's slot.
  void fetch(int64_t bytes, const ReplaySlots& replay, cudaStream_t stream) const;

  // Replaces all tables; addresses of the old ones are in captured graphs, which the caller drops first. The old tables
  // are retired, not freed: steps under way may still read them.
  void grow(int64_t bytes);
  void free_retired();  // after everything that was enqueued

 private:
  static constexpr int64_t kFirstCapacity = int64_t{1} << 20;

  std::byte* host() const { return hosts_[slot_].get(); }

  int64_t capacity_ = 0;
  int64_t used_ = 0;
  int64_t slot_ = 0;
  PinnedArray<std::byte> hosts_[kStepSlots];
  DeviceArray<std::byte> device_;
  std::vector<PinnedArray<std::byte>> retired_hosts_;
  std::vector<DeviceArray<std::byte>> retired_devices_;
};

}  // namespace muster::kernels::cuda
