// Which kernels this build has, and which hardware and libraries they find on this machine.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muster::kernels {

struct CpuInfo {
  std::string elementwise;  // the instruction set of the loops over elements: "avx512", "avx2" or "portable"
  std::string blis;         // the kernels that BLIS chose for this machine: "skx", "haswell", ...
  std::string blis_version;
};

struct GpuInfo {
  std::string name{};
  std::string compute_capability{};  // "9.0"
  bool supported = false;            // this build has code for this GPU
};

// Versions are major * 1000 + minor * 10, as CUDA counts.
struct CudaInfo {
  bool built_in = false;
  std::string architectures{};  // as CMAKE_CUDA_ARCHITECTURES: "80-real;90a-real"
  int runtime_version = 0;
  int driver_version = 0;  // the newest CUDA that the driver supports; 0 without a driver
  std::vector<GpuInfo> devices{};
};

CpuInfo cpu_info();
// Initializes the CUDA driver. Does not throw if there is none.
CudaInfo cuda_info();
// Memory that can be allocated on a device now; 0 if CUDA is not built in. Throws DeviceError.
int64_t cuda_free_bytes(int device);

}  // namespace muster::kernels
