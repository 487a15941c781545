// Times at places of a step that is carried out call by call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <vector>

#include "kernels/cuda/runtime/cuda_handles.h"

namespace muster::kernels::cuda {

class StepTimers {
 public:
  void restart() { count_ = 0; }
  // Each returns the number of the time. A dry run and a capture skip it.
  int record(cudaStream_t stream);
  int skip() { return static_cast<int>(count_++); }
  // All times of the step in ns of the steady clock, by number. Waits for `stream`, on which the step has ended. Empty
  // if the step recorded none.
  std::vector<int64_t> times_ns(cudaStream_t stream);

 private:
  EventPool events_{cudaEventDefault};
  size_t count_ = 0;
};

}  // namespace muster::kernels::cuda
