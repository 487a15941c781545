// Products by cuBLAS, for devices that product.cu has no instructions for. The library is looked for at run time, so
// that programs start where it is not.
#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>
#include <map>

namespace muster::kernels::cuda {

struct Gemm;

class Cublas {
 public:
  Cublas();  // throws DeviceError: there is no cuBLAS
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;
  ~Cublas();

  static bool available();

  // A matrix at a time: what cuBLAS chooses for one depends on how many there are. A symmetric D is symmetric but for
  // rounding. Enqueues; operands have been checked.
  void multiply(const Gemm& gemm, cudaStream_t stream);
  // All in one call, with the alpha of the first and without C. What others are compared with.
  void multiply_together(const Gemm& gemm, cudaStream_t stream);

 private:
  struct Functions;
  struct Lane {
    void* handle = nullptr;
    std::byte* workspace = nullptr;  // its own, with a zero behind it
  };
  Lane& lane(cudaStream_t stream);

  const Functions& functions_;
  std::map<cudaStream_t, Lane> lanes_;
};

}  // namespace muster::kernels::cuda
