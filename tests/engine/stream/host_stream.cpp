// A device without a GPU, for what the engine does differently where calls return early: the CPU's kernels behind the
// interface of a stream, in place of src/backends.cpp. Every step is probed, as a recorded one is, and then carried
// out.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "backends.h"
#include "engine/recorder.h"
#include "kernels/stream.h"
#include "muster/error.h"

namespace muster {

namespace {

using namespace kernels;

class HostStream final : public Kernels, public Stream {
 public:
  void* allocate(int64_t bytes) override { return cpu_->allocate(bytes); }
  void release(void* data) noexcept override { cpu_->release(data); }
  void read(void* host, const void* device, const HostRows& rows) override {
    if (replaying()) throw Internal("a read that a recorded step would not repeat");
    cpu_->read(host, device, rows);
  }
  void write(void* device, const void* host, const HostRows& rows) override {
    if (replaying()) throw Internal("a write that a recorded step would not repeat");
    cpu_->write(device, host, rows);
  }
  Stream* stream() override { return this; }

  void copy(int64_t width, std::span<const CopyBlock> blocks) override {
    unless_probing([&] { cpu_->copy(width, blocks); });
  }
  void add(Dtype dtype, std::span<const AddBlock> blocks) override {
    unless_probing([&] { cpu_->add(dtype, blocks); });
  }
  void divide(std::span<const DivideRange> ranges) override {
    unless_probing([&] { cpu_->divide(ranges); });
  }
  void momentum_pack(const MomentumOptions& options, std::span<const MomentumBlock> blocks) override {
    unless_probing([&] { cpu_->momentum_pack(options, blocks); });
  }
  void apply(const ApplyOptions& options, std::span<const ApplyBlock> blocks) override {
    unless_probing([&] { cpu_->apply(options, blocks); });
  }
  void adamw(const AdamWOptions& options, std::span<const ElementRange> ranges) override {
    unless_probing([&] { cpu_->adamw(options, ranges); });
  }
  void lion(const LionOptions& options, std::span<const ElementRange> ranges) override {
    unless_probing([&] { cpu_->lion(options, ranges); });
  }
  int64_t workspace_worth() const override { return cpu_->workspace_worth(); }
  int64_t polish_workspace(MatrixShape shape, int64_t batch, const PolishOptions& options) const override {
    return cpu_->polish_workspace(shape, batch, options);
  }
  void polish(const PolishOptions& options, MatrixShape shape, std::span<const PolishMatrix> batch,
              Workspace workspace) override {
    unless_probing([&] { cpu_->polish(options, shape, batch, workspace); });
  }
  void sum_squares(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* words) override {
    unless_probing([&] { cpu_->sum_squares(dtype, blocks, words); });
  }
  void find_non_finite(Dtype dtype, std::span<const ValueBlock> blocks, int64_t* found) override {
    unless_probing([&] { cpu_->find_non_finite(dtype, blocks, found); });
  }
  void zero_non_finite(Dtype dtype, std::span<const ValueBlock> blocks) override {
    unless_probing([&] { cpu_->zero_non_finite(dtype, blocks); });
  }

  void begin_step(bool) override {
    if (mode_ == Mode::kIdle) ++step_;
    mode_ = mode_ == Mode::kIdle ? Mode::kProbe : Mode::kEager;
    times_.clear();
    launches_ = 0;
  }
  bool end_step() override {
    if (mode_ == Mode::kProbe) return false;
    mode_ = Mode::kIdle;
    sent_[step_ % kStepsInFlight].assign(send_from_.begin(), send_from_.end());
    return true;
  }
  bool replaying() const override { return mode_ == Mode::kProbe; }
  void forget() override { mode_ = Mode::kIdle; }
  void follow(void*) override {}
  void sign(std::span<const int64_t>) override {}

  // Exchanges of a host bridge are done when they return.
  void* fork() override { return nullptr; }
  int mark() override { return 0; }
  void join(int) override {}
  void* main() override { return nullptr; }

  void put(int64_t* device, std::span<const int64_t> words) override {
    unless_probing([&] { std::copy(words.begin(), words.end(), device); });
  }
  void clear(void* device, int64_t bytes) override {
    unless_probing([&] { std::memset(device, 0, static_cast<size_t>(bytes)); });
  }
  void decide(const int64_t* words, int64_t zeros, const int64_t* present, std::span<int32_t> active,
              Verdict* verdict) override {
    unless_probing([&] {
      const bool go = std::all_of(words, words + zeros, [](int64_t word) { return word == 0; });
      for (size_t p = 0; p < active.size(); ++p) active[p] = go && present[p] != 0 ? 1 : 0;
      *verdict = {1, 0, go ? 1 : 0};
    });
  }
  void refuse(std::span<const int64_t> words, std::span<int32_t> active, Verdict* verdict) override {
    unless_probing([&] {
      if (std::all_of(words.begin(), words.end(), [](int64_t word) { return word == 0; })) return;
      std::fill(active.begin(), active.end(), 0);
      verdict->go = 0;
    });
  }
  void clip(const int64_t* words, int64_t sums, double grad_scale, double max_norm, Verdict* verdict) override {
    unless_probing([&] {
      SumOfSquares total;
      for (int64_t s = 0; s < sums; ++s) {
        SumOfSquares one;
        std::copy_n(words + s * SumOfSquares::kWords, SumOfSquares::kWords, one.words().begin());
        total.merge(one);
      }
      verdict->norm = std::sqrt(total.value()) * std::abs(grad_scale);
      const double ratio = max_norm / (verdict->norm + 1e-6);
      verdict->clip = max_norm > 0 && ratio < 1 ? ratio : 1;
    });
  }
  void count(std::span<const int32_t> active, int64_t* updates) override {
    unless_probing([&] {
      for (size_t p = 0; p < active.size(); ++p) updates[p] += active[p];
    });
  }

  void send(const void* device, int64_t bytes) override {
    send_from_ = {static_cast<const std::byte*>(device), static_cast<size_t>(bytes)};
  }
  int64_t launches() const override { return launches_; }
  int64_t step() const override { return step_; }
  bool idle() override { return true; }
  bool done(int64_t) override { return true; }
  std::span<const std::byte> sent(int64_t step) const override { return sent_[step % kStepsInFlight]; }
  int stamp(bool) override {
    times_.push_back(engine::now_ns());
    return static_cast<int>(times_.size()) - 1;
  }
  std::vector<int64_t> stamps_ns() override { return times_; }
  void push(const std::string&) override {}
  void pop() override {}

 private:
  enum class Mode : uint8_t { kIdle, kProbe, kEager };

  template <typename Work>
  void unless_probing(Work work) {
    if (replaying()) return;
    ++launches_;
    work();
  }

  const std::unique_ptr<Kernels> cpu_ = make_cpu_kernels({1});
  Mode mode_ = Mode::kIdle;
  int64_t step_ = 0;
  int64_t launches_ = 0;
  std::span<const std::byte> send_from_;
  std::vector<std::byte> sent_[kStepsInFlight];
  std::vector<int64_t> times_;
};

}  // namespace

bool cuda_available() { return true; }

std::unique_ptr<Kernels> make_kernels(const Device& device, int threads) {
  if (device.kind == Device::Kind::kCpu) return make_cpu_kernels({threads});
  if (device.index != 0) {
    throw InvalidArgument("device cuda:" + std::to_string(device.index) + ": there is this one only");
  }
  return std::make_unique<HostStream>();
}

}  // namespace muster
