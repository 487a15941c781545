#include "kernels/cuda/runtime/argument_table.h"

#include <utility>

namespace muster::kernels::cuda {

void ArgumentTable::copy(std::byte* device, int64_t bytes, cudaStream_t stream) const {
  const std::byte* const from = host() + (device - device_.get());
  check(cudaMemcpyAsync(device, from, static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream), "table");
}

void ArgumentTable::fetch(int64_t bytes, const ReplaySlots& replay, cudaStream_t stream) const {
  fetch_arguments(device_.get(), {{hosts_[0].get(), hosts_[1].get()}}, bytes, replay, stream);
}

void ArgumentTable::grow(int64_t bytes) {
  for (PinnedArray<std::byte>& host : hosts_) {
    if (host) retired_hosts_.push_back(std::move(host));
    host = allocate_pinned<std::byte>(bytes, "table");
  }
  if (device_) retired_devices_.push_back(std::move(device_));
  device_ = allocate_on_device<std::byte>(bytes, "table");
  capacity_ = bytes / kAlign * kAlign;
}

void ArgumentTable::free_retired() {
  retired_hosts_.clear();
  retired_devices_.clear();
}

}  // namespace muster::kernels::cuda
