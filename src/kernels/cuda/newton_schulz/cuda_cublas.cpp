#include "kernels/cuda/newton_schulz/cuda_cublas.h"

#include <dlfcn.h>
#include <library_types.h>
#include <string>

#include "kernels/cuda/gemm_sm90/gemm.h"
#include "kernels/cuda/runtime/cuda_check.h"

namespace muster::kernels::cuda {

namespace {

// Values of cublas_api.h, which a build does not need.
constexpr int kPlain = 0;
constexpr int kTransposed = 1;
constexpr int kPointersOnDevice = 1;
constexpr int kNoReducedPrecision = 16;  // in sums of partial sums
constexpr int kSumsInF32 = 68;
constexpr int kAnyAlgorithm = -1;

constexpr size_t kWorkspaceBytes = Cublas::kLaneBytes - 16;

}  // namespace

struct Cublas::Functions {
  int (*create)(void**) = nullptr;
  int (*destroy)(void*) = nullptr;
  int (*set_stream)(void*, cudaStream_t) = nullptr;
  int (*set_workspace)(void*, void*, size_t) = nullptr;
  int (*set_pointer_mode)(void*, int) = nullptr;
  int (*set_math_mode)(void*, int) = nullptr;
  int (*gemm)(void*, int, int, int, int, int, const void*, const void*, cudaDataType, int, const void*, cudaDataType,
              int, const void*, void*, cudaDataType, int, int, int) = nullptr;
  int (*gemm_batched)(void*, int, int, int, int, int, const void*, const void*, cudaDataType, int, long long,
                      const void*, cudaDataType, int, long long, const void*, void*, cudaDataType, int, long long, int,
                      int, int) = nullptr;
  bool found = false;

  static const Functions& instance() {
    static const Functions functions;
    return functions;
  }

 private:
  Functions() {
    void* library = nullptr;
    for (const char* name : {"libcublas.so.13", "libcublas.so.12", "libcublas.so"}) {
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) return;
    found = true;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      found = found && function != nullptr;
    };
    find(create, "cublasCreate_v2");
    find(destroy, "cublasDestroy_v2");
    find(set_stream, "cublasSetStream_v2");
    find(set_workspace, "cublasSetWorkspace_v2");
    find(set_pointer_mode, "cublasSetPointerMode_v2");
    find(set_math_mode, "cublasSetMathMode");
    find(gemm, "cublasGemmEx");
    find(gemm_batched, "cublasGemmStridedBatchedEx");
  }
};

namespace {

void check_cublas(int status, const char* what) {
  if (status != 0) throw DeviceError(std::string("cuBLAS: ") + what + ": status " + std::to_string(status));
}

cudaDataType type_of(const Gemm& p) { return p.type == Half::kF16 ? CUDA_R_16F : CUDA_R_16BF; }
int inner_of(const Gemm& p) { return static_cast<int>(p.a_transposed ? p.a.rows : p.a.columns); }
int pitch(const Matrices& m) { return static_cast<int>(m.pitch); }
int operation(bool transposed) { return transposed ? kTransposed : kPlain; }

void* matrix_of(const Matrices& m, int64_t i) { return static_cast<uint16_t*>(m.data) + i * m.stride; }

}  // namespace

Cublas::Cublas() : functions_(Functions::instance()) {
  if (!functions_.found) throw DeviceError("cuBLAS: no libcublas.so here");
}

Cublas::~Cublas() {
  for (const auto& [stream, lane] : lanes_) {
    functions_.destroy(lane.handle);
    cudaFree(lane.workspace);
  }
  if (lent_.handle != nullptr) functions_.destroy(lent_.handle);
}

bool Cublas::available() { return Functions::instance().found; }

Cublas::Lane& Cublas::lane(cudaStream_t stream) {
  if (lent_.workspace != nullptr) return lent_;
  Lane& lane = lanes_[stream];
  if (lane.handle != nullptr) return lane;
  check_cublas(functions_.create(&lane.handle), "handle");
  check(cudaMalloc(reinterpret_cast<void**>(&lane.workspace), kLaneBytes), "cuBLAS workspace");
  prepare(lane, stream);
  return lane;
}

void Cublas::lend(std::byte* memory, cudaStream_t stream) {
  if (lent_.handle == nullptr) check_cublas(functions_.create(&lent_.handle), "handle");
  lent_.workspace = memory;
  prepare(lent_, stream);
}

// Fixes everything that cuBLAS might otherwise choose by the calls before.
void Cublas::prepare(Lane& lane, cudaStream_t stream) const {
  check(cudaMemsetAsync(lane.workspace + kWorkspaceBytes, 0, 16, stream), "cuBLAS workspace");
  check_cublas(functions_.set_stream(lane.handle, stream), "stream");
  check_cublas(functions_.set_workspace(lane.handle, lane.workspace, kWorkspaceBytes), "workspace");
  check_cublas(functions_.set_pointer_mode(lane.handle, kPointersOnDevice), "pointer mode");
  check_cublas(functions_.set_math_mode(lane.handle, kNoReducedPrecision), "math mode");
}

// cuBLAS is column-major, so this computes D^T = B^T A^T.
void Cublas::multiply(const Gemm& p, cudaStream_t stream) {
  const Lane& on = lane(stream);
  const cudaDataType type = type_of(p);
  const bool adds = p.c.data != nullptr;
  for (int64_t i = 0; i < p.batch; ++i) {
    const Scalars* const scalars = p.scalars + i * p.scalars_stride;
    void* const d = matrix_of(p.d, i);
    if (adds) {
      check(cudaMemcpy2DAsync(d, static_cast<size_t>(p.d.pitch * 2), matrix_of(p.c, i),
                              static_cast<size_t>(p.c.pitch * 2), static_cast<size_t>(p.d.columns * 2),
                              static_cast<size_t>(p.d.rows), cudaMemcpyDeviceToDevice, stream),
            "product");
    }
    const void* const beta = adds ? static_cast<const void*>(&scalars->beta) : on.workspace + kWorkspaceBytes;
    check_cublas(
        functions_.gemm(on.handle, operation(p.b_transposed), operation(p.a_transposed), static_cast<int>(p.d.columns),
                        static_cast<int>(p.d.rows), inner_of(p), &scalars->alpha, matrix_of(p.b, i), type, pitch(p.b),
                        matrix_of(p.a, i), type, pitch(p.a), beta, d, type, pitch(p.d), kSumsInF32, kAnyAlgorithm),
        "product");
  }
}

void Cublas::multiply_batched(const Gemm& p, cudaStream_t stream) {
  const Lane& on = lane(stream);
  const cudaDataType type = type_of(p);
  check_cublas(functions_.gemm_batched(on.handle, operation(p.b_transposed), operation(p.a_transposed),
                                       static_cast<int>(p.d.columns), static_cast<int>(p.d.rows), inner_of(p),
                                       &p.scalars->alpha, p.b.data, type, pitch(p.b), p.b.stride, p.a.data, type,
                                       pitch(p.a), p.a.stride, on.workspace + kWorkspaceBytes, p.d.data, type,
                                       pitch(p.d), p.d.stride, static_cast<int>(p.batch), kSumsInF32, kAnyAlgorithm),
               "products");
}

}  // namespace muster::kernels::cuda
