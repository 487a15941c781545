// Orthogonal factors in place, scaled by NorMuon if asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/newton_schulz/newton_schulz.h"
#include "kernels/cuda/newton_schulz/normuon.h"
#include "kernels/cuda/runtime/launch_queue.h"
#include "kernels/kernels.h"

namespace muster::kernels::cuda {

// How many matrices go through the steps together well. Small ones: so many that a symmetric product fills the device
// four times, and that what they read and write stays in its cache from one product to the next. Large ones: so many
// that little of the device is idle at a product's end, with 512 MiB of scratch.
int64_t orthogonalize_batch(MatrixShape shape, int multiprocessors);

// Orthogonal factors of matrices [first, first + count) of a batch as the steps left them, and what is yet to be
// multiplied with, before it is rounded to the wire.
struct Orthogonalized {
  size_t first = 0;
  size_t count = 0;
  const UpdateMatrix* matrices = nullptr;  // on the device
  Half type = Half::kBf16;
  Matrices o;
  LineAxis axis = LineAxis::kRows;
  LineFactors factors{};
};

class Orthogonalizer {
 public:
  enum class Products : uint8_t { kBest, kCublas };
  explicit Orthogonalizer(int device, Products products = Products::kBest);
  ~Orthogonalizer();

  // So that a batch goes through the steps at once if its matrices are equally far apart, on 16 bytes; for 1, what any
  // batch can do with.
  int64_t workspace(MatrixShape shape, int64_t batch, const OrthogonalizeOptions& options) const;

  // On the stream of the queue. Where there is a `use`, it is called for one part of the batch after the other, and
  // must enqueue what reads the part before it returns: the next part has the same scratch. Matrices are then not
  // written.
  using Use = std::function<void(const Orthogonalized&)>;
  void run(const OrthogonalizeOptions& options, MatrixShape shape, std::span<const UpdateMatrix> batch,
           Workspace workspace, LaunchQueue& queue, const Use& use = {});
  // Equal for sets whose iterations are the same launches, whatever the shape.
  int64_t kind_of(const Coefficients& coefficients) const;

 private:
  // What follows from coefficients, and takes some computing.
  struct Known {
    Coefficients coefficients;
    double safety = 1;
    bool tolerates_gram = false;
  };
  const Known& known(const Coefficients& coefficients) const;

  std::unique_ptr<Cublas> cublas_;  // where our own products do not run
  mutable std::vector<Known> known_;
  std::vector<int64_t> inputs_;  // of one batch; kept for its memory
};

}  // namespace muster::kernels::cuda
