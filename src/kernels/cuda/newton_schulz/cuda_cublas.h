// GEMMs by cuBLAS, for devices that our GEMM does not run on. The library is loaded at run time, so that programs
// start without it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <map>

namespace muster::kernels::cuda {

struct Gemm;

class Cublas {
 public:
  Cublas();  // throws DeviceError if cuBLAS is not installed
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;
  ~Cublas();

  static bool available();

  // Until give_back(), GEMMs go to this stream, with this memory of kLaneBytes on the device as their workspace, so
  // that a graph which captures them shares no workspace with other work.
  static constexpr int64_t kLaneBytes = (int64_t{8} << 20) + 16;
  void lend(std::byte* memory, cudaStream_t stream);
  void give_back() noexcept { lent_.workspace = nullptr; }

  // One call per matrix, because the algorithm that cuBLAS chooses depends on the size of the batch. A symmetric D may
  // differ from its transpose by rounding. Enqueues without checking operands.
  void multiply(const Gemm& gemm, cudaStream_t stream);
  // One call for the batch, with the alpha of the first matrix and without C: the baseline of tests and benchmarks.
  void multiply_batched(const Gemm& gemm, cudaStream_t stream);

 private:
  struct Functions;
  struct Lane {
    void* handle = nullptr;
    std::byte* workspace = nullptr;  // followed by a zero of 16 bytes, which serves as beta
  };
  void prepare(Lane& lane, cudaStream_t stream) const;
  Lane& lane(cudaStream_t stream);

  const Functions& functions_;
  std::map<cudaStream_t, Lane> lanes_;
  Lane lent_;
};

}  // namespace muster::kernels::cuda
