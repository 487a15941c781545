// What a step computes on one device: the interface that cpu/ and cuda/ implement.
//
// Every result depends on the values and options alone: not on the batch or block list a matrix or element sits in, on
// strides or alignment, or on how many threads or streams work. Nothing here communicates; scratch is passed in (BLAS
// keeps packing buffers of its own). Pointers are on the device of the backend and belong to the caller. A call returns
// when its work is enqueued (CPU: done).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/sum_of_squares.h"
#include "muster/group.h"
#include "muster/problem.h"

namespace muster::kernels {

// Blocks are rows x columns elements; element (i, j) of an operand sits at its pointer + i * its stride + j, in
// elements. Any row may start anywhere. Empty blocks are fine. Blocks of one call must not overlap in what they write.

struct MomentumOptions {
  Dtype grad = Dtype::kF32;      // f32 or bf16, as the next two
  Dtype momentum = Dtype::kF32;  // rounded when stored; the update sees it unrounded
  Dtype wire = Dtype::kBf16;
  MomentumForm form = MomentumForm::kEma;
  bool nesterov = true;  // else U = M
  double mu = 0.95;
  double grad_scale = 1;  // clipping: multiplies every gradient first
};

struct MomentumBlock {
  int64_t rows = 0;
  int64_t columns = 0;
  const void* grad = nullptr;  // null: zeros
  int64_t grad_stride = 0;
  void* momentum = nullptr;
  int64_t momentum_stride = 0;
  void* update = nullptr;  // in wire dtype
  int64_t update_stride = 0;
};

// Where weights are, and which elements of their parameter they are: (i, j) is first + i * row_stride + j. Only
// stochastic rounding reads the indices and the stream (a number for the parameter, the same on every rank).
struct WeightBlock {
  void* data = nullptr;
  void* extra = nullptr;  // as the form says, with the stride of data
  int64_t stride = 0;
  uint64_t stream = 0;
  int64_t first_index = 0;
  int64_t row_index_stride = 0;
};

struct Rounding {
  uint64_t seed = 0;
  uint64_t step = 0;
};

struct ApplyOptions {
  Dtype wire = Dtype::kBf16;
  WeightForm form = WeightForm::kF32;
  Decay decay = Decay::kPlain;
  Rounding rounding{};  // for kBf16Stochastic
};

// W <- W (1 - lr wd) where decay applies, then W <- W - lr scale U. Here lr is the learning rate times the parameter's
// multiplier: decay follows the multiplier, and never the scale of the shape.
struct ApplyBlock {
  int64_t rows = 0;
  int64_t columns = 0;
  const void* update = nullptr;  // in wire dtype
  int64_t update_stride = 0;
  WeightBlock weight{};
  double step = 0;   // lr scale
  double decay = 0;  // lr wd
};

struct AdamWOptions {
  Dtype grad = Dtype::kF32;
  WeightForm form = WeightForm::kF32;
  Decay decay = Decay::kPlain;
  Rounding rounding{};
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  int64_t step = 1;  // for the bias correction; counts from 1
  double grad_scale = 1;
};

struct LionOptions {
  Dtype grad = Dtype::kF32;
  WeightForm form = WeightForm::kF32;
  Decay decay = Decay::kPlain;
  Rounding rounding{};
  double beta1 = 0.9;
  double beta2 = 0.99;
  double grad_scale = 1;
};

// A contiguous range of elements of one parameter; the stride of `weight` is not read. Moments are f32.
struct ElementRange {
  int64_t count = 0;
  const void* grad = nullptr;  // null: zeros
  float* first = nullptr;      // AdamW: mean of gradients; Lion: momentum
  float* second = nullptr;     // AdamW: mean of squares
  WeightBlock weight{};
  double lr = 0;     // times the multiplier
  double decay = 0;  // lr wd
};

struct OrthogonalizeOptions {
  Coefficients coefficients{};
  double eps = 0;  // X / (safety ||X||_F + eps). 0: the scale of the gradient does not matter. Zero stays zero
  Dtype input = Dtype::kBf16;  // f32 or bf16, as the next
  Dtype output = Dtype::kF32;  // f32 where NorMuon follows
};

// One matrix of a batch, contiguous, row-major. Output may be input where both are of one dtype.
struct MatrixPair {
  const void* input = nullptr;
  void* output = nullptr;
};

enum class LineAxis : uint8_t { kRows, kColumns };
LineAxis line_axis(NormAxis axis, int64_t rows, int64_t columns);  // the longer side; a tie: rows

struct NorMuonOptions {
  LineAxis axis = LineAxis::kRows;  // one variance a row, or one a column
  double beta2 = 0.95;
  double eps = 1e-8;
  Dtype wire = Dtype::kBf16;
};

struct NorMuonMatrix {
  const float* o = nullptr;   // orthogonalized, contiguous
  float* variance = nullptr;  // one a line; starts at 0
  void* output = nullptr;     // in wire dtype, rounded once; may be o where the wire is f32
};

struct MatrixShape {
  int64_t rows = 0;
  int64_t columns = 0;
};

// Scratch for a call, 64-byte aligned. More than the least makes batches faster, never different.
struct Workspace {
  void* data = nullptr;
  int64_t bytes = 0;
};

// Values to look at, f32 or bf16.
struct ValueBlock {
  int64_t rows = 0;
  int64_t columns = 0;
  const void* data = nullptr;
  int64_t stride = 0;
};

class Kernels {
 public:
  virtual ~Kernels() = default;

  virtual void momentum_pack(const MomentumOptions& options, std::span<const MomentumBlock> blocks) = 0;
  virtual void apply(const ApplyOptions& options, std::span<const ApplyBlock> blocks) = 0;
  virtual void adamw(const AdamWOptions& options, std::span<const ElementRange> ranges) = 0;
  virtual void lion(const LionOptions& options, std::span<const ElementRange> ranges) = 0;

  // Matrices that are orthogonalized at the same time, where the batch and the scratch have as many.
  virtual int64_t side_by_side() const { return 1; }
  // Scratch for `batch` matrices of one shape; with batch 1, the least any batch of that shape needs.
  virtual int64_t orthogonalize_workspace(MatrixShape shape, int64_t batch) const = 0;
  virtual void orthogonalize(const OrthogonalizeOptions& options, MatrixShape shape, std::span<const MatrixPair> batch,
                             Workspace workspace) = 0;

  // The least and the most: the whole batch at once.
  virtual int64_t normuon_workspace(MatrixShape shape, int64_t batch) const = 0;
  virtual void normuon(const NorMuonOptions& options, MatrixShape shape, std::span<const NorMuonMatrix> batch,
                       Workspace workspace) = 0;

  // Adds every value's square to `sum`, exactly; counts what is not finite there. Ready when the call returns.
  virtual void sum_squares(Dtype dtype, std::span<const ValueBlock> blocks, SumOfSquares& sum) = 0;
  virtual bool all_finite(Dtype dtype, std::span<const ValueBlock> blocks) = 0;
  // Writes 0 over NaN and infinities (through the pointers, in spite of their const).
  virtual void zero_non_finite(Dtype dtype, std::span<const ValueBlock> blocks) = 0;
};

struct CpuOptions {
  int threads = 1;
};

bool cpu_available();
std::unique_ptr<Kernels> make_cpu_kernels(const CpuOptions& options);

}  // namespace muster::kernels
