// The launch queue by its former name.
#pragma once

#include "kernels/cuda/runtime/launch_queue.h"

namespace muster::kernels::cuda {

using Queue = LaunchQueue;

}  // namespace muster::kernels::cuda
