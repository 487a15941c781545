// CUDA devices by number.
#pragma once

#include "kernels/backend_info.h"

namespace muster::kernels::cuda {

GpuInfo describe(int device);  // never throws
// Throws InvalidArgument if this build has no code for the device: launches would fail one by one.
void require_supported(int device);

}  // namespace muster::kernels::cuda
