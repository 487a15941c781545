// Which device an optimizer computes on: the one place that knows the backends of kernels.
#include "backends.h"

namespace muster {

bool cuda_available() { return kernels::cuda_available(); }

std::unique_ptr<kernels::Kernels> make_kernels(const Device& device, int threads) {
  if (device.kind == Device::Kind::kCuda) return kernels::make_cuda_kernels({device.index, device.stream});
  return kernels::make_cpu_kernels({threads});
}

}  // namespace muster
