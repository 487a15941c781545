// Which CUDA devices there are.
#include <cuda_runtime_api.h>

#include "kernels/cuda/check.h"
#include "kernels/kernels.h"

namespace muster::kernels {

int cuda_devices() {
  int count = 0;
  const bool found = cudaGetDeviceCount(&count) == cudaSuccess;
  cudaGetLastError();  // what it left behind
  return found ? count : 0;
}

void use_cuda_device(int device) { cuda::check(cudaSetDevice(device), "device"); }

}  // namespace muster::kernels
