#include "kernels/cuda/runtime/cuda_devices.h"

#include <cuda_runtime_api.h>
#include <string>

#include "compiled_architectures.h"
#include "kernels/architectures.h"
#include "kernels/backend_info.h"
#include "kernels/cuda/runtime/cuda_check.h"
#include "kernels/kernels.h"

namespace muster::kernels {

int cuda_devices() {
  int count = 0;
  const bool found = cudaGetDeviceCount(&count) == cudaSuccess;
  cudaGetLastError();  // resets the error
  return found ? count : 0;
}

void use_cuda_device(int device) { cuda::check(cudaSetDevice(device), "device"); }

int64_t cuda_free_bytes(int device) {
  int before = 0;
  cuda::check(cudaGetDevice(&before), "device");
  use_cuda_device(device);
  size_t free = 0;
  size_t total = 0;
  const cudaError_t error = cudaMemGetInfo(&free, &total);
  use_cuda_device(before);
  cuda::check(error, "free memory");
  return static_cast<int64_t>(free);
}

namespace {

GpuInfo describe(int device) {  // does not throw
  cudaDeviceProp properties{};
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, device); error != cudaSuccess) {
    cudaGetLastError();
    return {std::string("cannot be used: ") + cudaGetErrorString(error), "unknown"};
  }
  return {properties.name, std::to_string(properties.major) + "." + std::to_string(properties.minor),
          runs_on(kCompiledArchitectures, properties.major, properties.minor)};
}

}  // namespace

void cuda::require_supported(int device) {
  const GpuInfo gpu = describe(device);
  if (gpu.supported) return;
  throw InvalidArgument("device cuda:" + std::to_string(device) + " (" + gpu.name + ", compute capability " +
                        gpu.compute_capability + "): Muster was compiled for " + std::string(kCompiledArchitectures) +
                        " only; build it on this machine, or with MUSTER_CUDA_ARCHITECTURES=all");
}

CudaInfo cuda_info() {
  CudaInfo info{.built_in = true, .architectures = std::string(kCompiledArchitectures)};
  cudaRuntimeGetVersion(&info.runtime_version);
  cudaDriverGetVersion(&info.driver_version);
  const int devices = cuda_devices();
  for (int device = 0; device < devices; ++device) info.devices.push_back(describe(device));
  return info;
}

}  // namespace muster::kernels
