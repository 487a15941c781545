// Kernels that decide about a step on the device: see StepDecisions.
#pragma once

#include "kernels/async_device.h"
#include "kernels/cuda/runtime/launch_queue.h"

namespace muster::kernels::cuda {

void decide(const Decision& decision, LaunchQueue& queue);
void refuse(const Refusal& refusal, LaunchQueue& queue);
void clip(const Clip& clip, LaunchQueue& queue);
void count(const Count& count, LaunchQueue& queue);

}  // namespace muster::kernels::cuda
