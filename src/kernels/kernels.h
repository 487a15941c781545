// What a step computes on one device: the interface that cpu/ and cuda/ implement.
//
// Every result depends on the values and options alone: not on the batch or block list a matrix or element sits in, on
// strides or alignment, or on how many threads or streams work. Nothing here communicates; scratch is passed in (BLAS
// keeps packing buffers of its own). Pointers are on the device of the backend and belong to the caller. A call returns
// when its work is enqueued (CPU: done).
//
// `active` of a block, where it is not null, points to a word on the device; 0 there: nothing of the block is changed.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>

#include "kernels/sum_of_squares.h"
#include "muster/group.h"
#include "muster/problem.h"

namespace muster::kernels {

// Blocks are rows x columns elements; element (i, j) of an operand sits at its pointer + i * its stride + j, in
// elements. Any row may start anywhere. Empty blocks are fine. Blocks of one call must not overlap in what they write.

// Of a group: what schedules change from step to step. Kernels read it where it is, on the device, so that another
// value is not another call. Null stands for these defaults.
struct Rates {
  double lr = 0.02;
  double weight_decay = 0;
  double momentum = 0.95;
};

struct MomentumOptions {
  Dtype grad = Dtype::kF32;      // f32 or bf16, as the next two
  Dtype momentum = Dtype::kF32;  // rounded when stored; the update sees it unrounded
  Dtype wire = Dtype::kBf16;
  MomentumForm form = MomentumForm::kEma;
  bool nesterov = true;          // else U = M
  double grad_scale = 1;         // multiplies every gradient first
  const double* clip = nullptr;  // on the device, multiplies grad_scale; null: 1
  const Rates* rates = nullptr;
};

struct MomentumBlock {
  int64_t rows = 0;
  int64_t columns = 0;
  const void* grad = nullptr;  // null: zeros
  int64_t grad_stride = 0;
  void* momentum = nullptr;
  int64_t momentum_stride = 0;
  void* update = nullptr;  // in wire dtype; null: only momentum is wanted
  int64_t update_stride = 0;
  const int32_t* active = nullptr;
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

// Gradients are clipped by min(1, max / (norm + this)).
inline constexpr double kClipEps = 1e-6;

struct Rounding {
  uint64_t seed = 0;
  uint64_t step = 0;
};

struct ApplyOptions {
  Dtype wire = Dtype::kBf16;
  WeightForm form = WeightForm::kF32;
  Decay decay = Decay::kPlain;
  Rounding rounding{};  // for kBf16Stochastic
  const Rates* rates = nullptr;
};

// W <- W (1 - lr multiplier wd) where decay applies, then W <- W - lr multiplier scale U: decay follows the parameter's
// multiplier, and never the scale of its shape.
struct ApplyBlock {
  int64_t rows = 0;
  int64_t columns = 0;
  const void* update = nullptr;  // in wire dtype
  int64_t update_stride = 0;
  WeightBlock weight{};
  double scale = 1;
  double multiplier = 1;
  const int32_t* active = nullptr;
};

struct AdamWOptions {
  Dtype grad = Dtype::kF32;
  WeightForm form = WeightForm::kF32;
  Decay decay = Decay::kPlain;
  Rounding rounding{};
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  int64_t step = 1;  // for the bias correction; counts from 1. Ranges may have their own
  double grad_scale = 1;
  const double* clip = nullptr;
  const Rates* rates = nullptr;
};

struct LionOptions {
  Dtype grad = Dtype::kF32;
  WeightForm form = WeightForm::kF32;
  Decay decay = Decay::kPlain;
  Rounding rounding{};
  double beta1 = 0.9;
  double beta2 = 0.99;
  double grad_scale = 1;
  const double* clip = nullptr;
  const Rates* rates = nullptr;
};

// A contiguous range of elements of one parameter; the stride of `weight` is not read. Moments are f32.
struct ElementRange {
  int64_t count = 0;
  const void* grad = nullptr;  // null: zeros
  float* first = nullptr;      // AdamW: mean of gradients; Lion: momentum
  float* second = nullptr;     // AdamW: mean of squares
  WeightBlock weight{};
  double multiplier = 1;             // of lr
  const int64_t* updates = nullptr;  // on the device: AdamW's step is one more. Null: as the options say
  const int32_t* active = nullptr;
};

enum class LineAxis : uint8_t { kRows, kColumns };
LineAxis line_axis(NormAxis axis, int64_t rows, int64_t columns);  // the longer side; a tie: rows

struct MatrixShape {
  int64_t rows = 0;
  int64_t columns = 0;
};

// A matrix is contiguous, row-major, and becomes its orthogonal factor in place, scaled by NorMuon if asked for.
struct OrthogonalizeOptions {
  struct Lines {
    LineAxis axis = LineAxis::kRows;  // one variance a row, or one a column
    double beta2 = 0.95;
    double eps = 1e-8;
  };
  Coefficients coefficients{};
  Dtype wire = Dtype::kBf16;  // of the matrices, before and after: f32 or bf16
  std::optional<Lines> normuon{};
};

struct UpdateMatrix {
  void* matrix = nullptr;
  float* variance = nullptr;  // one a line; starts at 0. Only NorMuon's
  const int32_t* active = nullptr;
  // If not null, receives ||G - I||_F^2, on the device: G is the Gram matrix of the orthogonal factor along its short
  // side, before NorMuon scales it.
  double* gram_error = nullptr;
};

// Scratch for a call, 64-byte aligned. More than the least makes batches faster, never different.
struct Workspace {
  void* data = nullptr;
  int64_t bytes = 0;
};

// Weights, and as many f32 values, dense, that are subtracted from them.
struct ChangeBlock {
  int64_t rows = 0;
  int64_t columns = 0;
  WeightBlock weight{};
  float* values = nullptr;
  const int32_t* active = nullptr;
};

// Values to look at, f32 or bf16.
struct ValueBlock {
  int64_t rows = 0;
  int64_t columns = 0;
  const void* data = nullptr;  // null: nothing to see
  int64_t stride = 0;
  const int32_t* active = nullptr;
  int64_t number = 0;  // which of several sums or words it counts towards
};

// Consecutive values whose fingerprint is wanted: a sum that wraps over a hash of each value's bits and place.
struct PrintRange {
  int64_t count = 0;
  const void* data = nullptr;  // null: the fingerprint is 0
  int64_t word = 0;            // gets `factor` times the fingerprint
  uint64_t factor = 1;
  uint64_t total_factor = 0;  // what the word of all ranges gets of it
};

// Rows of elements of a given width.
struct CopyBlock {
  int64_t rows = 0;
  int64_t columns = 0;
  const void* from = nullptr;  // null: zeros
  int64_t from_stride = 0;
  void* to = nullptr;
  int64_t to_stride = 0;
};

// Adds values to f32 sums.
struct AddBlock {
  int64_t rows = 0;
  int64_t columns = 0;
  const void* from = nullptr;  // null: zeros
  int64_t from_stride = 0;
  float* to = nullptr;
  int64_t to_stride = 0;
};

struct DivideRange {
  int64_t count = 0;
  float* data = nullptr;
  float divisor = 1;
};

// Rows between the device and the host, in bytes.
struct HostRows {
  int64_t rows = 1;
  int64_t bytes = 0;  // of a row
  int64_t device_stride = 0;
  int64_t host_stride = 0;
};

class AsyncDevice;

class Kernels {
 public:
  virtual ~Kernels() = default;

  // Memory on the device: on a cache line, and zero.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void release(void* data) noexcept = 0;
  // After everything that was enqueued; done when the call returns.
  virtual void read(void* host, const void* device, const HostRows& rows) = 0;
  virtual void write(void* device, const void* host, const HostRows& rows) = 0;
  // Where calls return before their work is done. Null: they do not.
  virtual AsyncDevice* stream() { return nullptr; }

  // Work that is independent may go to different lanes, each of which keeps its order: lane(0) to lane(lanes() - 1)
  // start where the others have come to, and join_lanes() waits for all.
  virtual int lanes() const { return 1; }
  virtual void lane(int) {}
  virtual void join_lanes() {}

  virtual void copy(int64_t width, std::span<const CopyBlock> blocks) = 0;
  virtual void add(Dtype dtype, std::span<const AddBlock> blocks) = 0;
  virtual void divide(std::span<const DivideRange> ranges) = 0;

  virtual void momentum_pack(const MomentumOptions& options, std::span<const MomentumBlock> blocks) = 0;
  virtual void apply(const ApplyOptions& options, std::span<const ApplyBlock> blocks) = 0;
  virtual void adamw(const AdamWOptions& options, std::span<const ElementRange> ranges) = 0;
  virtual void lion(const LionOptions& options, std::span<const ElementRange> ranges) = 0;

  // values = weights - values, with the f32 value that a weight of this form stands for. From zeros: the weights. With
  // the weights before an update there: the change that the update made.
  virtual void subtract_from_weights(WeightForm form, std::span<const ChangeBlock> blocks) = 0;

  // Matrices that are orthogonalized at the same time, where the batch and the scratch have as many.
  virtual int64_t side_by_side() const { return 1; }
  // How many make a good batch; more do no good.
  virtual int64_t orthogonalize_batch(MatrixShape) const { return std::numeric_limits<int64_t>::max(); }
  // All the scratch that is worth having.
  virtual int64_t workspace_worth() const = 0;
  // Scratch for `batch` matrices of one shape, whatever the coefficients; with batch 1, the least any batch of that
  // shape needs.
  virtual int64_t orthogonalize_workspace(MatrixShape shape, int64_t batch,
                                          const OrthogonalizeOptions& options) const = 0;
  virtual void orthogonalize(const OrthogonalizeOptions& options, MatrixShape shape,
                             std::span<const UpdateMatrix> batch, Workspace workspace) = 0;

  // orthogonalize, then apply of updates that lie in the matrices, with the same bits. What the matrices hold
  // afterwards is undefined.
  virtual void orthogonalize_and_apply(const OrthogonalizeOptions& orthogonalize_options, MatrixShape shape,
                                       std::span<const UpdateMatrix> batch, Workspace workspace,
                                       const ApplyOptions& apply_options, std::span<const ApplyBlock> blocks) {
    orthogonalize(orthogonalize_options, shape, batch, workspace);
    apply(apply_options, blocks);
  }

  // Adds every value's square to the sum of its block's number, each SumOfSquares::kWords words on the device, exactly;
  // counts what is not finite there.
  virtual void sum_squares(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* words) = 0;
  // Writes 1 to found[number], a word on the device, if there is NaN or infinity in a block of that number.
  virtual void find_non_finite(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* found) = 0;
  // Adds fingerprints to words on the device; words[total] is the word of all ranges.
  virtual void fingerprint(Dtype dtype, std::span<const PrintRange> ranges, int64_t* words, int64_t total) = 0;
  // Writes 0 over them (through the pointers, in spite of their const).
  virtual void zero_non_finite(Dtype dtype, std::span<const ValueBlock> blocks) = 0;
};

struct CpuOptions {
  int threads = 1;
};

bool cpu_available();
std::unique_ptr<Kernels> make_cpu_kernels(const CpuOptions& options);

struct CudaOptions {
  int device = 0;
  std::optional<void*> stream{};  // the caller's cudaStream_t, 0 being the default one; steps and it keep their order
};

bool cuda_available();                                                   // built in, and there is a device
int cuda_devices();                                                      // how many; 0 where it is not built in
void use_cuda_device(int device);                                        // by the calling thread, as NCCL takes it
std::unique_ptr<Kernels> make_cuda_kernels(const CudaOptions& options);  // throws InvalidArgument naming the device

}  // namespace muster::kernels
