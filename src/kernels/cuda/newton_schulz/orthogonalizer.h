// Orthogonalizes matrices in place on the device, and scales them by NorMuon if the options have it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/cuda/gemm_sm90/gemm.h"
#include "kernels/cuda/newton_schulz/orthogonalized.h"
#include "kernels/cuda/runtime/launch_queue.h"
#include "kernels/kernel_calls.h"

namespace muster::kernels::cuda {

// How many matrices are best orthogonalized together. Small ones: as many as keep the device busy for four waves of
// tiles per symmetric GEMM, while what the GEMMs read and write stays in the L2 cache. Large ones: as many as leave
// little of the device idle at the end of a GEMM, within 512 MiB of workspace.
int64_t best_batch_size(MatrixShape shape, int multiprocessors);

class Orthogonalizer {
 public:
  enum class Gemms : uint8_t { kBest, kCublas };
  explicit Orthogonalizer(int device, Gemms gemms = Gemms::kBest);
  ~Orthogonalizer();

  // Bytes of workspace with which `count` matrices go through the steps together, if they are equally far apart and
  // aligned to 16 bytes. For count 1: enough for any batch.
  int64_t workspace(MatrixShape shape, int64_t count, const OrthogonalizeOptions& options) const;

  // Runs on the current stream of the queue. With a `use`, the matrices are not written. Instead, `use` is called for
  // one part of the batch after the other, and must enqueue all reads of the part before it returns, because the next
  // part uses the same workspace.
  using Use = std::function<void(const Orthogonalized&)>;
  void run(const OrthogonalizeBatch& batch, LaunchQueue& queue, const Use& use = {});

  // Bytes that a caller whose stream may be captured must lend, aligned to 256, and the loan: run() on that stream uses
  // them for what would otherwise be shared by all calls. Not for graphs of the queue.
  int64_t lent_bytes() const;
  void lend(std::byte* memory, cudaStream_t stream);
  void give_back() noexcept;

  // Equal for coefficients whose iterations are the same launches, whatever the shape.
  int64_t call_pattern(const Coefficients& coefficients) const;

 private:
  // What follows from coefficients and is slow to compute.
  struct Analysis {
    Coefficients coefficients;
    double safety = 1;
    bool tolerates_gram = false;
  };
  const Analysis& analysis(const Coefficients& coefficients) const;

  std::unique_ptr<Cublas> cublas_;  // null if our own GEMM runs on this device
  mutable std::vector<Analysis> analyses_;
  std::vector<int64_t> inputs_;  // of one part of a batch; kept to reuse its memory
};

}  // namespace muster::kernels::cuda
