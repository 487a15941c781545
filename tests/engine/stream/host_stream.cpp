// Emulates a device on the host, in place of src/backends.cpp: the CPU's kernels behind AsyncDevice, so that the step
// path of devices is tested without a GPU. Calls return early; a thread carries them out later. Every step has a dry
// run, whether captured or not, and is then carried out; replayed() says whether a device would have replayed it.
// Memoized calls are kept, and repeated as they were if their inputs are those of the step before.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <set>

#include "backends.h"
#include "engine/step/step_timer.h"
#include "engine/stream/host_queue.h"
#include "kernels/async_device.h"
#include "muster/error.h"

namespace muster {

namespace {

using namespace kernels;

// Calls return before their work is done, so the work has its own copy of their arguments.
template <typename T>
std::vector<T> own(std::span<const T> values) {
  return {values.begin(), values.end()};
}

class HostDevice final : public Kernels, public AsyncDevice {
 public:
  explicit HostDevice(std::optional<void*> caller) { follow(caller.value_or(nullptr)); }

  void* allocate(int64_t bytes) override { return cpu_->allocate(bytes); }
  void release(void* data) noexcept override {
    queue_.wait();
    cpu_->release(data);
  }
  void read(void* host, const void* device, const HostRows& rows) override {
    if (dry_run()) throw Internal("a read that a captured step would not repeat");
    queue_.wait();
    cpu_->read(host, device, rows);
  }
  void write(void* device, const void* host, const HostRows& rows) override {
    if (dry_run()) throw Internal("a write that a captured step would not repeat");
    queue_.wait();
    cpu_->write(device, host, rows);
  }
  AsyncDevice* async_device() override { return this; }

  void copy(int64_t width, std::span<const CopyBlock> blocks) override {
    later([=, this, blocks = own(blocks)] { cpu_->copy(width, blocks); });
  }
  void add(Dtype dtype, std::span<const AddBlock> blocks) override {
    later([=, this, blocks = own(blocks)] { cpu_->add(dtype, blocks); });
  }
  void divide(std::span<const DivideRange> ranges) override {
    later([this, ranges = own(ranges)] { cpu_->divide(ranges); });
  }
  void momentum_pack(const MomentumOptions& options, std::span<const MomentumBlock> blocks) override {
    later([=, this, blocks = own(blocks)] { cpu_->momentum_pack(options, blocks); });
  }
  void apply(const ApplyOptions& options, std::span<const ApplyBlock> blocks) override {
    later([=, this, blocks = own(blocks)] { cpu_->apply(options, blocks); });
  }
  void adamw(const AdamWOptions& options, std::span<const ElementRange> ranges) override {
    later([=, this, ranges = own(ranges)] { cpu_->adamw(options, ranges); });
  }
  void lion(const LionOptions& options, std::span<const ElementRange> ranges) override {
    later([=, this, ranges = own(ranges)] { cpu_->lion(options, ranges); });
  }
  void subtract_from_weights(WeightForm form, std::span<const ChangeBlock> blocks) override {
    later([=, this, blocks = own(blocks)] { cpu_->subtract_from_weights(form, blocks); });
  }
  int64_t largest_workspace() const override { return cpu_->largest_workspace(); }
  int64_t orthogonalize_workspace(MatrixShape shape, int64_t batch,
                                  const OrthogonalizeOptions& options) const override {
    return cpu_->orthogonalize_workspace(shape, batch, options);
  }
  void orthogonalize(const OrthogonalizeBatch& batch) override {
    later([=, this, matrices = own(batch.matrices)] {
      cpu_->orthogonalize(
          {.options = batch.options, .shape = batch.shape, .matrices = matrices, .workspace = batch.workspace});
    });
  }
  void sum_squares(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* words) override {
    later([=, this, blocks = own(blocks)] { cpu_->sum_squares(dtype, blocks, words); });
  }
  void find_non_finite(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* found) override {
    later([=, this, blocks = own(blocks)] { cpu_->find_non_finite(dtype, blocks, found); });
  }
  void fingerprint(Dtype dtype, std::span<const FingerprintRange> ranges, int64_t* words, int64_t total) override {
    later([=, this, ranges = own(ranges)] { cpu_->fingerprint(dtype, ranges, words, total); });
  }
  void zero_non_finite(Dtype dtype, std::span<const ValueBlock> blocks) override {
    later([=, this, blocks = own(blocks)] { cpu_->zero_non_finite(dtype, blocks); });
  }

  void begin_step(bool capture) override {
    capture_ = capture;
    if (mode_ == Mode::kIdle) {
      ++step_;
      wait_for_caller();
    }
    mode_ = mode_ == Mode::kIdle ? Mode::kDryRun : Mode::kEager;
    start_pass();
  }
  bool end_step() override {
    if (mode_ == Mode::kDryRun) return false;
    mode_ = Mode::kIdle;
    key_.push_back(launches_);
    replayed_ = capture_ && captured_.contains(key_);
    if (capture_ && seen_.contains(key_)) captured_.insert(key_);
    seen_.insert(key_);
    std::vector<std::byte>& results = results_[step_ % kStepsInFlight];
    queue_.add([&results, from = read_back_] { results.assign(from.begin(), from.end()); });
    queue_.add([this, step = step_] { done_ = step; });
    if (caller_ != nullptr) caller_->add(queue_.arrived());
    return true;
  }
  void reserve_table(const std::function<void()>& calls) override {
    if (mode_ != Mode::kIdle || step_ > 0) throw Internal("reserve_table after the first step");
    mode_ = Mode::kDryRun;
    start_pass();
    calls();
    mode_ = Mode::kIdle;
  }
  void begin_piecewise() override {
    if (mode_ != Mode::kIdle) throw Internal("a step within a step");
    ++step_;
    capture_ = false;
    mode_ = Mode::kPaused;
    start_pass();
  }
  void resume() override {
    if (mode_ != Mode::kPaused) throw Internal("a part of a step within another, or of none");
    mode_ = Mode::kEager;
    wait_for_caller();
  }
  void pause() noexcept override {
    if (mode_ == Mode::kEager) mode_ = Mode::kPaused;
  }
  bool dry_run() const override { return mode_ == Mode::kDryRun; }
  void drop_graphs() override {
    if (ranges_ != 0) throw Internal("a range that was not closed");
    mode_ = Mode::kIdle;
    keeping_ = false;
    inputs_.clear();
    seen_.clear();
    captured_.clear();
    queue_.wait();
    queue_.forgive();
    done_ = step_;
  }
  void follow(void* caller) override { caller_ = static_cast<test::HostQueue*>(caller); }
  void add_to_key(std::span<const int64_t> numbers) override {
    key_.insert(key_.end(), numbers.begin(), numbers.end());
  }
  int64_t call_pattern(const Coefficients& coefficients) const override {
    const auto sketch = static_cast<int64_t>(coefficients.sketch);
    return std::ssize(coefficients.steps) << 10 | sketch << 2 | static_cast<int64_t>(coefficients.rescale);
  }

  // There is one queue: exchanges take their turn between kernels.
  void* fork() override {
    forked_ = true;
    return &queue_;
  }
  int record_event() override { return 0; }
  void join(int) override {}
  void* main() override { return &queue_; }

  bool memoize(std::span<const int64_t> inputs, const std::function<void()>& calls) override {
    if (!capture_ || dry_run()) {
      calls();
      return true;
    }
    const bool same = std::ranges::equal(inputs, inputs_);
    if (same) {
      for (const auto& work : kept_) later(work);
      return false;
    }
    inputs_.assign(inputs.begin(), inputs.end());
    kept_.clear();
    keeping_ = true;
    forked_ = false;
    calls();
    keeping_ = false;
    if (forked_) inputs_.clear();  // exchanges are not kept
    return true;
  }

  const Rates* upload(std::span<const Rates> rates) override {
    rates_.resize(rates.size());
    later([this, rates = own(rates)] { std::ranges::copy(rates, rates_.begin()); });
    return rates_.data();
  }
  void upload(int64_t* device, std::span<const int64_t> words) override {
    later([device, words = own(words)] { std::copy(words.begin(), words.end(), device); });
  }
  void clear(void* device, int64_t bytes) override {
    later([=] { std::memset(device, 0, static_cast<size_t>(bytes)); });
  }
  void decide(const Decision& decision) override {
    later([d = decision] {
      const bool go = std::all_of(d.words, d.words + d.zeros, [](int64_t word) { return word == 0; });
      for (int64_t p = 0; p < d.parameters; ++p) {
        d.active[p] = go && d.present[p] != 0 ? 1 : 0;
        d.sitting[p] = go && d.present[p] == 0 ? 1 : 0;
      }
      *d.verdict = {1, 0, go ? 1 : 0};
    });
  }
  void refuse(const Refusal& refusal) override {
    later([r = refusal] {
      if (std::all_of(r.words, r.words + r.count, [](int64_t word) { return word == 0; })) return;
      std::fill_n(r.active, r.parameters, 0);
      std::fill_n(r.sitting, r.parameters, 0);
      r.verdict->go = 0;
    });
  }
  void clip(const Clip& clip) override {
    later([c = clip] {
      SumOfSquares total;
      for (int64_t s = 0; s < c.sums; ++s) {
        SumOfSquares one;
        std::copy_n(c.words + s * SumOfSquares::kWords, SumOfSquares::kWords, one.words().begin());
        total.merge(one);
      }
      c.verdict->norm = std::sqrt(total.value()) * std::abs(c.grad_scale);
      const double ratio = c.max_norm / (c.verdict->norm + 1e-6);
      c.verdict->clip = c.max_norm > 0 && ratio < 1 ? ratio : 1;
    });
  }
  void count(const Count& count) override {
    later([c = count] {
      for (int64_t p = 0; p < c.parameters; ++p) c.updates[p] += c.active[p];
    });
  }

  void read_back(const void* device, int64_t bytes) override {
    read_back_ = {static_cast<const std::byte*>(device), static_cast<size_t>(bytes)};
  }
  int64_t launches() const override { return launches_; }
  bool replayed() const override { return replayed_; }
  int64_t step() const override { return step_; }
  bool idle() override { return queue_.idle(); }
  bool done(int64_t step) override { return done_ >= step || !queue_.error().empty(); }
  std::span<const std::byte> read_back_of(int64_t step) const override { return results_[step % kStepsInFlight]; }
  int record_time(bool) override {
    const int number = time_number_++;
    if (!dry_run()) queue_.add([this] { times_.push_back(engine::now_ns()); });
    return number;
  }
  std::vector<int64_t> times_ns() override {
    queue_.wait();
    return times_;
  }
  void push_range(const std::string&) override { ++ranges_; }
  void pop_range() noexcept override { --ranges_; }

 private:
  enum class Mode : uint8_t { kIdle, kDryRun, kEager, kPaused };

  void start_pass() {
    time_number_ = 0;
    launches_ = 0;
    key_.clear();
    queue_.add([this] { times_.clear(); });
  }
  void wait_for_caller() {
    if (caller_ != nullptr) queue_.add(caller_->arrived());
  }
  template <typename Work>
  void later(Work work) {
    if (mode_ == Mode::kPaused) throw Internal("a call between the parts of a step");
    if (dry_run()) return;
    ++launches_;
    if (keeping_) kept_.push_back(work);
    queue_.add(std::move(work));
  }

  const std::unique_ptr<Kernels> cpu_ = make_cpu_kernels({1});
  test::HostQueue* caller_ = nullptr;
  Mode mode_ = Mode::kIdle;
  int64_t step_ = 0;
  std::atomic<int64_t> done_ = 0;
  int64_t launches_ = 0;
  bool capture_ = false;
  bool keeping_ = false;
  bool forked_ = false;
  std::vector<int64_t> inputs_;
  std::vector<std::function<void()>> kept_;
  std::vector<int64_t> key_;                 // what was added to it, and the number of calls
  std::set<std::vector<int64_t>> seen_;      // keys that a device would capture the next time
  std::set<std::vector<int64_t>> captured_;  // keys that a device would replay
  bool replayed_ = false;
  std::vector<Rates> rates_;
  int ranges_ = 0;
  int time_number_ = 0;
  std::span<const std::byte> read_back_;
  std::vector<std::byte> results_[kStepsInFlight];
  std::vector<int64_t> times_;
  test::HostQueue queue_;  // last: its work uses the rest
};

}  // namespace

bool cuda_available() { return true; }

std::unique_ptr<Kernels> make_kernels(const Device& device, int threads) {
  if (device.kind == Device::Kind::kCpu) return make_cpu_kernels({threads});
  if (device.index != 0) {
    throw InvalidArgument("device cuda:" + std::to_string(device.index) + ": there is this one only");
  }
  return std::make_unique<HostDevice>(device.stream);
}

}  // namespace muster
