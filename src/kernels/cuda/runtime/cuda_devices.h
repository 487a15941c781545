// Whether this build has code for a CUDA device.
#pragma once

namespace muster::kernels::cuda {

// Throws InvalidArgument if this build has no code for the device. Without this check every launch would fail.
void require_supported(int device);

}  // namespace muster::kernels::cuda
