// Kernels on a CUDA device: all launches go through one LaunchQueue.
#include <algorithm>
#include <iterator>
#include <optional>
#include <string>

#include <nvtx3/nvToolsExt.h>

#include "kernels/async_device.h"
#include "kernels/cuda/elementwise/elementwise.h"
#include "kernels/cuda/newton_schulz/apply_orthogonalized.h"
#include "kernels/cuda/newton_schulz/orthogonalizer.h"
#include "kernels/cuda/runtime/cuda_devices.h"
#include "kernels/cuda/runtime/cuda_handles.h"
#include "kernels/cuda/runtime/decisions.h"
#include "kernels/cuda/runtime/launch_queue.h"
#include "muster/error.h"

namespace muster::kernels {
namespace cuda {
namespace {

std::optional<cudaStream_t> stream_of(const CudaOptions& options) {
  if (!options.stream) return {};
  return static_cast<cudaStream_t>(*options.stream);
}

class CudaKernels final : public Kernels, public AsyncDevice {
 public:
  explicit CudaKernels(const CudaOptions& options)
      : device_(options.device), queue_(stream_of(options)), orthogonalizer_(options.device) {
    check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device_), "device");
  }

  void* allocate(int64_t bytes) override {
    const DeviceGuard guard(device_);
    void* data = nullptr;
    const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
    check(cudaMalloc(&data, size), "allocate");
    check(cudaMemsetAsync(data, 0, size, queue_.main()), "allocate");
    queue_.synchronize();
    return data;
  }
  void release(void* data) noexcept override { cudaFree(data); }
  void read(void* host, const void* device, const HostRows& rows) override {
    transfer({host, rows.host_stride}, {device, rows.device_stride}, rows, cudaMemcpyDeviceToHost);
  }
  void write(void* device, const void* host, const HostRows& rows) override {
    transfer({device, rows.device_stride}, {host, rows.host_stride}, rows, cudaMemcpyHostToDevice);
  }
  AsyncDevice* async_device() override { return this; }

  int lanes() const override { return LaunchQueue::kLanes; }
  void lane(int lane) override { queue_.lane(lane); }
  void join_lanes() override { queue_.join_lanes(); }

  void copy(int64_t width, std::span<const CopyBlock> blocks) override { cuda::copy(width, blocks, queue_); }
  void add(Dtype dtype, std::span<const AddBlock> blocks) override { cuda::add(dtype, blocks, queue_); }
  void divide(std::span<const DivideRange> ranges) override { cuda::divide(ranges, queue_); }

  void momentum_pack(const MomentumOptions& options, std::span<const MomentumBlock> blocks) override {
    cuda::momentum_pack(options, blocks, queue_);
  }
  void apply(const ApplyOptions& options, std::span<const ApplyBlock> blocks) override {
    cuda::apply(options, blocks, queue_);
  }
  void adamw(const AdamWOptions& options, std::span<const ElementRange> ranges) override {
    cuda::adamw(options, ranges, queue_);
  }
  void lion(const LionOptions& options, std::span<const ElementRange> ranges) override {
    cuda::lion(options, ranges, queue_);
  }
  void subtract_from_weights(WeightForm form, std::span<const ChangeBlock> blocks) override {
    cuda::subtract_from_weights(form, blocks, queue_);
  }

  int64_t best_batch_size(MatrixShape shape) const override { return cuda::best_batch_size(shape, multiprocessors_); }
  int64_t largest_workspace() const override { return int64_t{1} << 30; }
  int64_t orthogonalize_workspace(MatrixShape shape, int64_t count,
                                  const OrthogonalizeOptions& options) const override {
    return orthogonalizer_.workspace(shape, count, options);
  }
  void orthogonalize(const OrthogonalizeBatch& batch) override { orthogonalizer_.run(batch, queue_); }
  void orthogonalize_and_apply(const OrthogonalizeBatch& batch, const ApplyOptions& options,
                               std::span<const ApplyBlock> blocks) override {
    const auto parts = cuda::matrix_blocks(batch, options, blocks);
    if (!parts.has_value() || batch.options.wire != options.wire) {
      return Kernels::orthogonalize_and_apply(batch, options, blocks);
    }
    orthogonalizer_.run(batch, queue_, [&](const Orthogonalized& orthogonalized) {
      cuda::apply(options, orthogonalized, *parts, queue_);
    });
  }

  void sum_squares(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* words) override {
    cuda::sum_squares(dtype, blocks, words, queue_);
  }
  void find_non_finite(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* found) override {
    cuda::find_non_finite(dtype, blocks, found, queue_);
  }
  void fingerprint(Dtype dtype, std::span<const FingerprintRange> ranges, int64_t* words, int64_t total) override {
    cuda::fingerprint(dtype, ranges, words, total, queue_);
  }
  void zero_non_finite(Dtype dtype, std::span<const ValueBlock> blocks) override {
    cuda::zero_non_finite(dtype, blocks, queue_);
  }

  void begin_step(bool capture) override {
    if (!in_step_) in_step_.emplace(device_);
    queue_.begin_step(capture);
  }
  bool end_step() override {
    const bool done = queue_.end_step();
    if (done) in_step_.reset();
    return done;
  }
  void reserve_table(const std::function<void()>& calls) override {
    const DeviceGuard guard(device_);
    queue_.reserve_table(calls);
  }
  void begin_piecewise() override {
    const DeviceGuard guard(device_);
    queue_.begin_piecewise();
  }
  void resume() override {
    in_step_.emplace(device_);
    queue_.wait_for_caller();
  }
  void pause() noexcept override { in_step_.reset(); }
  bool dry_run() const override { return queue_.dry_run(); }
  void drop_graphs() override {
    in_step_.reset();
    const DeviceGuard guard(device_);
    queue_.drop_graphs();
  }
  void follow(void* caller) override { queue_.follow(static_cast<cudaStream_t>(caller)); }
  void add_to_key(std::span<const int64_t> numbers) override { queue_.add_to_key(numbers); }
  int64_t call_pattern(const Coefficients& coefficients) const override {
    return orthogonalizer_.call_pattern(coefficients);
  }
  void* fork() override { return queue_.fork(); }
  int record_event() override { return queue_.record_event(); }
  void join(int event) override { queue_.join(event); }
  void* main() override { return queue_.main(); }

  bool memoize(std::span<const int64_t> inputs, const std::function<void()>& calls) override {
    return queue_.memoize(inputs, {}, calls);
  }

  const Rates* upload(std::span<const Rates> rates) override { return queue_.upload(rates); }
  void upload(int64_t* device, std::span<const int64_t> words) override {
    const int64_t* const from = queue_.upload(words);
    queue_.launch("upload", {address(device), static_cast<int64_t>(words.size())}, [&](cudaStream_t stream) {
      check(cudaMemcpyAsync(device, from, words.size_bytes(), cudaMemcpyDeviceToDevice, stream), "upload");
    });
  }
  void clear(void* device, int64_t bytes) override {
    queue_.launch("clear", {address(device), bytes}, [&](cudaStream_t stream) {
      check(cudaMemsetAsync(device, 0, static_cast<size_t>(bytes), stream), "clear");
    });
  }
  void decide(const Decision& decision) override { cuda::decide(decision, queue_); }
  void refuse(const Refusal& refusal) override { cuda::refuse(refusal, queue_); }
  void clip(const Clip& clip) override { cuda::clip(clip, queue_); }
  void count(const Count& count) override { cuda::count(count, queue_); }

  void read_back(const void* device, int64_t bytes) override { queue_.read_back(device, bytes); }
  int64_t launches() const override { return queue_.launches(); }
  bool replayed() const override { return queue_.replayed(); }
  bool idle() override { return queue_.idle(); }
  int64_t step() const override { return queue_.step(); }
  bool done(int64_t step) override { return queue_.done(step); }
  std::span<const std::byte> read_back_of(int64_t step) const override { return queue_.read_back_of(step); }

  int record_time(bool exchanges) override { return queue_.record_time(exchanges); }
  std::vector<int64_t> times_ns() override { return queue_.times_ns(); }
  void push_range(const std::string& name) override { nvtxRangePushA(name.c_str()); }
  void pop_range() noexcept override { nvtxRangePop(); }

 private:
  // One side of a transfer; strides in bytes.
  template <typename Data>
  struct Side {
    Data* data;
    int64_t stride;
  };

  void transfer(Side<void> to, Side<const void> from, const HostRows& rows, cudaMemcpyKind kind) {
    if (rows.rows == 0 || rows.bytes == 0) return;
    const DeviceGuard guard(device_);
    queue_.synchronize();
    queue_.wait_for_caller();
    const auto bytes = static_cast<size_t>(rows.bytes);
    const auto count = static_cast<size_t>(rows.rows);
    const bool dense = rows.rows == 1 || (to.stride == rows.bytes && from.stride == rows.bytes);
    const cudaError_t error =
        dense ? cudaMemcpyAsync(to.data, from.data, bytes * count, kind, queue_.main())
              : cudaMemcpy2DAsync(to.data, static_cast<size_t>(to.stride), from.data, static_cast<size_t>(from.stride),
                                  bytes, count, kind, queue_.main());
    check(error, "transfer");
    queue_.synchronize();
  }

  const int device_;
  std::optional<DeviceGuard> in_step_;
  LaunchQueue queue_;
  Orthogonalizer orthogonalizer_;
  int multiprocessors_ = 1;
};

}  // namespace
}  // namespace cuda

bool cuda_available() { return cuda_devices() > 0; }

std::unique_ptr<Kernels> make_cuda_kernels(const CudaOptions& options) {
  const int count = cuda_devices();
  if (options.device < 0 || options.device >= count) {
    throw InvalidArgument("device cuda:" + std::to_string(options.device) + ": there are " + std::to_string(count) +
                          " CUDA devices");
  }
  cuda::require_supported(options.device);
  const cuda::DeviceGuard guard(options.device);
  return std::make_unique<cuda::CudaKernels>(options);
}

}  // namespace muster::kernels
