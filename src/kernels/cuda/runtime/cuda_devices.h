// The CUDA devices of this machine, by number.
#pragma once

#include "kernels/backend_info.h"

namespace muster::kernels::cuda {

GpuInfo describe(int device);  // does not throw
// Throws InvalidArgument if this build has no code for the device. Without this check every launch would fail.
void require_supported(int device);

}  // namespace muster::kernels::cuda
