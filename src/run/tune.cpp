#include "run/tune.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/kernels.h"
#include "plan/cost_model.h"

namespace muster::run {
namespace {

using Clock = std::chrono::steady_clock;
using kernels::MatrixShape;

constexpr int64_t kSides[] = {16, 32, 64, 128, 256, 512, 1024, 2048};
constexpr int64_t kGramRatio = 4;             // long side / short side of the shapes that take the Gram form
constexpr int64_t kBatchElements = 1 << 20;   // of a batch, where a matrix has fewer
constexpr int64_t kMemoryElements = 1 << 24;  // past any cache
constexpr int64_t kMessageBytes = 16 << 20;   // of a message whose latency does not count
constexpr double kLongRun = 0.5;              // seconds; what takes longer is measured once

// As the cost model counts them.
double flops_of(MatrixShape shape) {
  const auto s = static_cast<double>(std::min(shape.rows, shape.columns));
  const auto l = static_cast<double>(std::max(shape.rows, shape.columns));
  return std::min(15 * l * s * s + 5 * s * s * s, 6 * l * s * s + 14 * s * s * s);
}

class Tuner {
 public:
  Tuner(Communicator& communicator, const TuneOptions& options)
      : communicator_(communicator),
        options_(options),
        kernels_(kernels::make_cpu_kernels({.threads = options.threads})) {
    // Steps of equal weight are near enough: the last sizes take most of the time.
    steps_ = static_cast<int>(std::size(kSides)) + 5;
  }

  TuneResult run() {
    result_.table = CostTable::cpu();
    result_.table.device = "cpu, measured";
    rates();
    batch_start();
    memory();
    if (communicator_.size() > 1) {
      latencies();
      bandwidth();
      overlap();
      result_.exchanges_measured = true;
    }
    options_.progress(1, "");
    validate(result_.table);
    return std::move(result_);
  }

 private:
  void next(const std::string& what) { options_.progress(static_cast<double>(step_++) / steps_, what); }

  // Seconds of the slowest rank, all having begun together.
  template <typename Work>
  double once(Work work) {
    communicator_.barrier("tune")->wait();
    const auto start = Clock::now();
    work();
    const std::chrono::duration<double> elapsed = Clock::now() - start;
    double slowest[] = {elapsed.count()};
    communicator_.all_reduce(std::span<double>(slowest), ReduceOp::kMax, "tune time")->wait();
    return slowest[0];
  }

  // The median of several, after one to warm up; what takes long needs neither.
  template <typename Work>
  double timed(int repeats, Work work) {
    const double first = once(work);
    if (first > kLongRun) return first;
    std::vector<double> seconds;
    for (int i = 0; i < repeats; ++i) seconds.push_back(once(work));
    std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
    return seconds[static_cast<size_t>(repeats / 2)];
  }

  double orthogonalize_seconds(MatrixShape shape, int64_t batch, int repeats) {
    const int64_t elements = shape.rows * shape.columns;
    std::vector<float> input(static_cast<size_t>(elements * batch));
    for (size_t i = 0; i < input.size(); ++i) input[i] = std::sin(static_cast<float>(i * i % 10'007));
    std::vector<kernels::PolishMatrix> matrices;
    for (int64_t m = 0; m < batch; ++m) matrices.push_back({input.data() + m * elements, nullptr, nullptr});
    const kernels::PolishOptions options{coefficients("polar_express"), Dtype::kF32, {}};
    const int64_t bytes = kernels_->polish_workspace(shape, batch, options);
    std::vector<std::byte> scratch(static_cast<size_t>(bytes) + 64);
    void* aligned = scratch.data();
    size_t space = scratch.size();
    std::align(64, static_cast<size_t>(bytes), aligned, space);
    return timed(repeats, [&] { kernels_->polish(options, shape, matrices, {aligned, bytes}); });
  }

  void rates() {
    CostTable& table = result_.table;
    table.rates.clear();
    for (const int64_t side : kSides) {
      next(fmt::format("orthogonalize {0}x{0}", side));
      double flops = 0;
      double seconds = 0;
      for (const int64_t ratio : {int64_t{1}, kGramRatio}) {
        const MatrixShape shape{side, side * ratio};
        const int64_t batch = std::clamp<int64_t>(kBatchElements / (shape.rows * shape.columns), 1, 256);
        if (ratio > 1 && side == std::end(kSides)[-1]) continue;  // 3 s, and no news after the square one
        const double all = flops_of(shape) * static_cast<double>(batch);
        const double taken = orthogonalize_seconds(shape, batch, 5);
        result_.rates.push_back({shape.rows, shape.columns, batch, all / taken / 1e9});
        flops += all;
        seconds += taken;
      }
      table.rates.push_back({side, std::max<int64_t>(1, std::llround(flops / seconds / 1e9))});
    }
  }

  void batch_start() {
    next("start of a batch");
    result_.table.batch_ns = nanoseconds(orthogonalize_seconds({2, 2}, 1, 101));
  }

  // The two passes over elements that every step makes.
  void memory() {
    next("memory");
    std::vector<float> grad(kMemoryElements, 0.5F);
    std::vector<float> momentum(kMemoryElements);
    std::vector<uint16_t> update(kMemoryElements);
    const std::vector<kernels::MomentumBlock> pack{{.rows = 1,
                                                    .columns = kMemoryElements,
                                                    .grad = grad.data(),
                                                    .grad_stride = kMemoryElements,
                                                    .momentum = momentum.data(),
                                                    .momentum_stride = kMemoryElements,
                                                    .update = update.data(),
                                                    .update_stride = kMemoryElements}};
    kernels::ApplyBlock apply{.rows = 1, .columns = kMemoryElements, .update = update.data()};
    apply.update_stride = kMemoryElements;
    apply.weight.data = grad.data();
    apply.weight.stride = kMemoryElements;
    apply.step = 1e-6;
    const std::vector<kernels::ApplyBlock> blocks{apply};
    const double seconds = timed(5, [&] {
      kernels_->momentum_pack({}, pack);
      kernels_->apply({}, blocks);
    });
    const double bytes = static_cast<double>(kMemoryElements * (plan::kMomentumBytes + plan::kApplyBytes));
    result_.table.memory_mbps = std::llround(bytes / seconds / 1e6);
  }

  // An exchange in which this rank sends `bytes` to each of the `peers` ranks after it.
  std::unique_ptr<Request> exchange(int32_t peers, int64_t bytes) {
    send_.resize(static_cast<size_t>(bytes * peers));
    receive_.resize(static_cast<size_t>(bytes * peers));
    const int32_t size = communicator_.size();
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (int32_t k = 0; k < peers; ++k) {
      sends.push_back({(communicator_.rank() + k + 1) % size, send_.data() + k * bytes, bytes});
      receives.push_back({(communicator_.rank() + size - k - 1) % size, receive_.data() + k * bytes, bytes});
    }
    return communicator_.exchange(sends, receives, "tune exchange");
  }

  // exchange + m * message: from exchanges without any message and with one to every other rank.
  void latencies() {
    next("latency");
    constexpr int64_t kBytes = 64;
    const int32_t peers = communicator_.size() - 1;
    const double none = timed(101, [&] { exchange(0, kBytes)->wait(); });
    const double all = timed(101, [&] { exchange(peers, kBytes)->wait(); });
    result_.table.exchange_ns = nanoseconds(none);
    result_.table.message_ns = nanoseconds(std::max(0.0, all - none) / peers);
  }

  void bandwidth() {
    next("bandwidth");
    exchange_seconds_ = timed(9, [&] { exchange(1, kMessageBytes)->wait(); });
    result_.table.intra_node_mbps =
        std::max<int64_t>(10, std::llround(static_cast<double>(kMessageBytes) / exchange_seconds_ / 1e6));
  }

  // An exchange beside a computation of about its length, which looks after it now and then as a step does.
  void overlap() {
    next("overlap");
    std::vector<float> grad(1 << 16, 0.5F);
    std::vector<float> momentum(1 << 16);
    std::vector<uint16_t> update(1 << 16);
    const std::vector<kernels::MomentumBlock> pack{
        {.rows = 1, .columns = 1 << 16, .grad = grad.data(), .momentum = momentum.data(), .update = update.data()}};
    const double piece = timed(101, [&] { kernels_->momentum_pack({}, pack); });
    const int pieces = static_cast<int>(std::clamp(exchange_seconds_ / piece, 1.0, 10'000.0));
    const double alone = timed(9, [&] {
      for (int i = 0; i < pieces; ++i) kernels_->momentum_pack({}, pack);
    });
    const double both = timed(9, [&] {
      const std::unique_ptr<Request> request = exchange(1, kMessageBytes);
      for (int i = 0; i < pieces; ++i) {
        kernels_->momentum_pack({}, pack);
        request->test();
      }
      request->wait();
    });
    const double hidden = (alone + exchange_seconds_ - both) / std::min(alone, exchange_seconds_);
    result_.table.overlap_percent = std::clamp<int64_t>(std::llround(100 * hidden), 0, 100);
  }

  static int64_t nanoseconds(double seconds) {
    return std::clamp<int64_t>(std::llround(seconds * 1e9), 0, 1'000'000'000);
  }

  Communicator& communicator_;
  const TuneOptions& options_;
  std::unique_ptr<kernels::Kernels> kernels_;
  TuneResult result_;
  std::vector<std::byte> send_;
  std::vector<std::byte> receive_;
  double exchange_seconds_ = 0;
  int step_ = 0;
  int steps_ = 1;
};

}  // namespace

TuneResult tune_cpu(Communicator& communicator, const TuneOptions& options) {
  return Tuner(communicator, options).run();
}

std::string cost_json(const CostTable& table) {
  nlohmann::ordered_json rates = nlohmann::ordered_json::array();
  for (const CostTable::Rate& rate : table.rates) rates.push_back({rate.short_side, rate.gflops});
  const nlohmann::ordered_json json = {{"device", table.device},
                                       {"rates", std::move(rates)},
                                       {"batch_ns", table.batch_ns},
                                       {"exchange_ns", table.exchange_ns},
                                       {"message_ns", table.message_ns},
                                       {"memory_mbps", table.memory_mbps},
                                       {"intra_node_mbps", table.intra_node_mbps},
                                       {"inter_node_mbps", table.inter_node_mbps},
                                       {"ranks_per_node", table.ranks_per_node},
                                       {"compute_bytes", table.compute_bytes},
                                       {"overlap_percent", table.overlap_percent}};
  std::string text;
  for (const auto& [key, value] : json.items()) {
    text += fmt::format("{}  \"{}\": {}", text.empty() ? "{\n" : ",\n", key, value.dump());
  }
  return text + "\n}\n";
}

}  // namespace muster::run
