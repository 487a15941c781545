#include "kernels/cuda/runtime/step_timers.h"

#include <chrono>

namespace muster::kernels::cuda {

int StepTimers::record(cudaStream_t stream) {
  check(cudaEventRecord(events_.at(count_), stream), "record time");
  return skip();
}

// Events tell differences only. The host has just waited for the last one, so that one's time is now.
std::vector<int64_t> StepTimers::times_ns(cudaStream_t stream) {
  std::vector<int64_t> times;
  if (count_ == 0 || events_.size() < count_) return times;
  const OwnedEvent end{cudaEventDefault};
  check(cudaEventRecord(end, stream), "record time");
  check(cudaEventSynchronize(end), "record time");
  const int64_t now =
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  for (size_t i = 0; i < count_; ++i) {
    float ms = 0;
    check(cudaEventElapsedTime(&ms, events_.at(i), end), "record time");
    times.push_back(now - static_cast<int64_t>(ms * 1e6F));
  }
  return times;
}

}  // namespace muster::kernels::cuda
