// Stands in for this folder where CUDA is not built in.
#include "kernels/kernels.h"
#include "muster/error.h"

namespace muster::kernels {

bool cuda_available() { return false; }

std::unique_ptr<Kernels> make_cuda_kernels(const CudaOptions&) {
  throw InvalidArgument("device cuda: not built in, nvcc was not found");
}

}  // namespace muster::kernels
