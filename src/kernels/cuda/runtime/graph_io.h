// What a recorded step takes from pinned host memory when it begins, and leaves there when it ends: some KB.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

namespace muster::kernels::cuda {

// Steps have slots of pinned memory by turns, but a graph has the same arguments at every replay. So it looks up its
// slot: the device counts replays, and the host says beforehand which slot the next one has.
constexpr int64_t kSlots = 2;
struct Slots {
  void* at[kSlots];
};
struct Replays {
  int64_t* count = nullptr;  // on the device
  int64_t* slots = nullptr;  // pinned: replay n has slots[n % kSlots]
};

// To be captured, first and last; whole 8 bytes. The device reads and writes the host's memory itself.
void carry_in(void* to, const Slots& from, int64_t bytes, const Replays& replays, cudaStream_t stream);
void carry_out(const Slots& to, const void* from, int64_t bytes, const Replays& replays, cudaStream_t stream);

// Before they are captured: loading a kernel may wait for the device.
void load_carriers();

}  // namespace muster::kernels::cuda
