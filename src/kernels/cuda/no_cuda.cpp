// Replaces this folder in builds without CUDA.
#include "kernels/backend_info.h"
#include "kernels/kernels.h"
#include "muster/error.h"

namespace muster::kernels {

bool cuda_available() { return false; }

int cuda_devices() { return 0; }

int64_t cuda_free_bytes(int) { return 0; }

namespace {
[[noreturn]] void refuse() { throw InvalidArgument("device cuda: not built in, nvcc was not found"); }
}  // namespace

void use_cuda_device(int) { refuse(); }

std::unique_ptr<Kernels> make_cuda_kernels(const CudaOptions&) { refuse(); }

void cuda_orthogonalize(const OrthogonalizeBatch&, const CudaOptions&) { refuse(); }

int64_t cuda_orthogonalize_workspace(const OrthogonalizeBatch&, int64_t, const CudaOptions&) { refuse(); }

CudaInfo cuda_info() { return {}; }

}  // namespace muster::kernels
