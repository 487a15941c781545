// Kernels that decide about a step on the device: see StepDecisions.
#pragma once

#include <cstdint>

#include "kernels/async_device.h"
#include "kernels/cuda/runtime/launch_queue.h"

namespace muster::kernels::cuda {

// All pointers are to device memory.

struct Decision {
  const int64_t* words = nullptr;
  int64_t zeros = 0;
  const int64_t* present = nullptr;
  int32_t* active = nullptr;
  int64_t parameters = 0;
  Verdict* verdict = nullptr;
};
void decide(const Decision& decision, LaunchQueue& queue);

struct Refusal {
  const int64_t* words = nullptr;
  int64_t count = 0;
  int32_t* active = nullptr;
  int64_t parameters = 0;
  Verdict* verdict = nullptr;
};
void refuse(const Refusal& refusal, LaunchQueue& queue);

struct Clip {
  const int64_t* words = nullptr;
  int64_t sums = 0;
  double grad_scale = 1;
  double max_norm = 0;
  Verdict* verdict = nullptr;
};
void clip(const Clip& clip, LaunchQueue& queue);

struct Count {
  const int32_t* active = nullptr;
  int64_t parameters = 0;
  int64_t* updates = nullptr;
};
void count(const Count& count, LaunchQueue& queue);

}  // namespace muster::kernels::cuda
