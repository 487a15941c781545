// What a step computes on one device: the interface that cpu/ and cuda/ implement.
//
// Every result depends on values and options alone: not on the other matrices or blocks of a call, on strides or
// alignment, or on the number of threads or streams. Nothing here communicates. Pointers are to memory of the backend's
// device and belong to the caller. Calls return once their work is enqueued; on the CPU, once it is done.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>

#include "kernels/kernel_calls.h"
#include "kernels/sum_of_squares.h"
#include "muster/problem.h"

namespace muster::kernels {

class AsyncDevice;

class Kernels {
 public:
  virtual ~Kernels() = default;

  // Zeroed memory on the device, aligned to a cache line.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void release(void* data) noexcept = 0;
  // These run after all enqueued work and are done when they return.
  virtual void read(void* host, const void* device, const HostRows& rows) = 0;
  virtual void write(void* device, const void* host, const HostRows& rows) = 0;
  // Null if calls return only when their work is done.
  virtual AsyncDevice* async_device() { return nullptr; }

  // Independent work may go to different lanes; each lane keeps its order. lane(i) selects the lane of the calls that
  // follow: its first work waits for all earlier work outside lanes. join_lanes() waits for all lanes.
  virtual int lanes() const { return 1; }
  virtual void lane(int) {}
  virtual void join_lanes() {}

  virtual void copy(int64_t width, std::span<const CopyBlock> blocks) = 0;  // elements of `width` bytes
  virtual void add(Dtype dtype, std::span<const AddBlock> blocks) = 0;
  virtual void divide(std::span<const DivideRange> ranges) = 0;

  // Updates momentum and writes the update, rounded to the wire dtype.
  virtual void momentum_pack(const MomentumOptions& options, std::span<const MomentumBlock> blocks) = 0;
  virtual void apply(const ApplyOptions& options, std::span<const ApplyBlock> blocks) = 0;
  virtual void adamw(const AdamWOptions& options, std::span<const ElementRange> ranges) = 0;
  virtual void lion(const LionOptions& options, std::span<const ElementRange> ranges) = 0;

  // values <- weights - values, where weights are the f32 values that the form stands for. From zeros: the weights.
  // From the weights before an update: what the update changed.
  virtual void subtract_from_weights(WeightForm form, std::span<const ChangeBlock> blocks) = 0;

  // Matrices that are orthogonalized at the same time if the batch and the workspace have as many.
  virtual int64_t concurrent_matrices() const { return 1; }
  // The largest batch that is faster per matrix than a smaller one.
  virtual int64_t best_batch_size(MatrixShape) const { return std::numeric_limits<int64_t>::max(); }
  // Bytes; a larger workspace makes no batch faster.
  virtual int64_t largest_workspace() const = 0;
  // Bytes for `count` matrices of one shape, whatever the coefficients; with count 1, the least that any batch of that
  // shape needs.
  virtual int64_t orthogonalize_workspace(MatrixShape shape, int64_t count,
                                          const OrthogonalizeOptions& options) const = 0;
  virtual void orthogonalize(const OrthogonalizeBatch& batch) = 0;

  // The same bits as orthogonalize() followed by apply() of updates that lie in the matrices. Afterwards the contents
  // of the matrices are undefined.
  virtual void orthogonalize_and_apply(const OrthogonalizeBatch& batch, const ApplyOptions& options,
                                       std::span<const ApplyBlock> blocks) {
    orthogonalize(batch);
    apply(options, blocks);
  }

  // Adds the square of every value, exactly, to the sum of its block's number, and counts NaNs and infinities there.
  // `words`, on the device, has SumOfSquares::kWords words per sum.
  virtual void sum_squares(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* words) = 0;
  // Writes 1 to found[number], on the device, if a block of that number holds NaN or infinity.
  virtual void find_non_finite(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* found) = 0;
  // Adds fingerprints to `words`, on the device; words[total] is the total of all ranges.
  virtual void fingerprint(Dtype dtype, std::span<const FingerprintRange> ranges, int64_t* words, int64_t total) = 0;
  // Replaces NaN and infinity by 0. Writes through the blocks' pointers although they are const.
  virtual void zero_non_finite(Dtype dtype, std::span<const ValueBlock> blocks) = 0;
};

struct CpuOptions {
  int threads = 1;
};

std::unique_ptr<Kernels> make_cpu_kernels(const CpuOptions& options);

struct CudaOptions {
  int device = 0;
  // The caller's cudaStream_t (0 is the default stream): steps and the work there keep their order.
  std::optional<void*> stream{};
};

bool cuda_available();             // built in, and there is a device
int cuda_devices();                // number of devices; 0 if CUDA is not built in
void use_cuda_device(int device);  // makes it current for the calling thread, as NCCL expects
std::unique_ptr<Kernels> make_cuda_kernels(const CudaOptions& options);  // throws InvalidArgument naming the device

// Orthogonalizes for a caller without an engine. Enqueues on the caller's stream itself, which may be capturing a
// graph: nothing on the host is read after it returns. No state of the call outlives it, so any threads may make calls.
void cuda_orthogonalize(const OrthogonalizeBatch& batch, const CudaOptions& options);
// Bytes of workspace, aligned to 256, that it needs for `count` matrices of the batch's shape. Reads shape and options.
int64_t cuda_orthogonalize_workspace(const OrthogonalizeBatch& batch, int64_t count, const CudaOptions& options);

}  // namespace muster::kernels
