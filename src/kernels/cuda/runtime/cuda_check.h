// Throws a failed CUDA call as DeviceError: what was done, and CUDA's text.
#pragma once

#include <cuda_runtime_api.h>
#include <string>

#include "muster/error.h"

namespace muster::kernels::cuda {

inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw DeviceError(std::string(what) + ": " + cudaGetErrorString(error));
}

}  // namespace muster::kernels::cuda
