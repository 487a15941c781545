// Arguments of launches outside an engine: kernels write them, whose own parameters hold the bytes. So nothing on the
// host has to outlive a call, and a stream that is being captured keeps them in its graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <vector>

namespace muster::kernels::cuda {

class DirectArguments {
 public:
  static constexpr int64_t kAlign = 16;

  DirectArguments();

  // Starts at the beginning of this memory of the caller's, on the device and aligned to kAlign. Launches that read
  // earlier arguments there must come before on the same stream.
  void start(std::byte* device, int64_t bytes);
  // Returns the place on the device, which has the bytes after flush(). Throws Internal if they do not fit.
  const std::byte* append(const void* data, int64_t bytes);
  // Enqueues the writes of what was appended since the last call.
  void flush(cudaStream_t stream);

 private:
  std::byte* device_ = nullptr;
  int64_t capacity_ = 0;
  int64_t flushed_ = 0;          // in the caller's memory
  std::vector<std::byte> host_;  // what goes behind it
};

}  // namespace muster::kernels::cuda
