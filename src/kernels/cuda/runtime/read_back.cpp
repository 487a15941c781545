#include "kernels/cuda/runtime/read_back.h"

namespace muster::kernels::cuda {

void ReadBack::reserve(int64_t bytes) {
  for (PinnedArray<std::byte>& host : hosts_) {
    host.reset();
    host = allocate_pinned<std::byte>(bytes, "read back");
  }
  capacity_ = bytes;
}

void ReadBack::copy(int64_t slot, cudaStream_t stream) const {
  if (bytes_ == 0) return;
  const auto bytes = static_cast<size_t>(bytes_);
  check(cudaMemcpyAsync(hosts_[slot].get(), device_, bytes, cudaMemcpyDeviceToHost, stream), "read back");
}

void ReadBack::store(const ReplaySlots& replay, cudaStream_t stream) const {
  store_results({{hosts_[0].get(), hosts_[1].get()}}, device_, bytes_, replay, stream);
}

}  // namespace muster::kernels::cuda
