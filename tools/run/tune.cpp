#include "run/tune.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "backends.h"
#include "engine/state/device_buffer.h"
#include "engine/step/host_bridge.h"
#include "kernels/async_device.h"
#include "kernels/kernels.h"
#include "muster/error.h"
#include "plan/cost_model/cost_model.h"

namespace muster::run {
namespace {

using Clock = std::chrono::steady_clock;
using engine::DeviceBuffer;
using kernels::MatrixShape;

// What is measured on a kind of device.
struct Sizes {
  std::vector<int64_t> sides;
  Dtype wire = Dtype::kF32;
  int64_t batch_elements = 0;   // of a batch, where a matrix has fewer
  int64_t memory_elements = 0;  // past any cache
  int64_t message_bytes = 0;    // of a message whose latency does not count
  int64_t piece_elements = 0;   // of a computation beside an exchange
};

Sizes sizes_of(Device::Kind kind) {
  if (kind == Device::Kind::kCpu) {
    return {{16, 32, 64, 128, 256, 512, 1024, 2048}, Dtype::kF32, 1 << 20, 1 << 24, 16 << 20, 1 << 16};
  }
  return {{64, 128, 256, 512, 768, 1024, 2048, 4096, 8192}, Dtype::kBf16, 1 << 26, 1 << 26, 64 << 20, 1 << 22};
}

constexpr int64_t kGramRatio = 4;  // long side / short side of the shapes that take the Gram form
constexpr int kStarts = 16;        // batches of which one's start is taken
constexpr double kLongRun = 0.5;   // seconds; what takes longer is measured once

// As the cost model counts them.
double flops_of(MatrixShape shape) {
  const auto s = static_cast<double>(std::min(shape.rows, shape.columns));
  const auto l = static_cast<double>(std::max(shape.rows, shape.columns));
  return std::min(15 * l * s * s + 5 * s * s * s, 6 * l * s * s + 14 * s * s * s);
}

class Tuner {
 public:
  Tuner(Communicator& communicator, const Device& device, const TuneOptions& options)
      : communicator_(communicator),
        options_(options),
        sizes_(sizes_of(device.kind)),
        kernels_(make_kernels(device, options.threads)),
        stream_(kernels_->async_device()) {
    result_.table = stream_ == nullptr ? CostTable::cpu() : CostTable::h200();
    result_.table.device = stream_ == nullptr ? "cpu, measured" : "cuda, measured";
    if (stream_ != nullptr) {
      link_ = communicator.on_stream();
      if (link_ == nullptr && communicator.size() > 1) link_ = &bridge_.emplace(communicator, *kernels_);
      flag_ = DeviceBuffer(*kernels_, 8);
    }
    // Steps of equal weight are near enough: the last sizes take most of the time.
    steps_ = static_cast<int>(sizes_.sides.size()) + 5;
  }

  TuneResult run() {
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

  // Until everything that was enqueued is done.
  void wait() {
    if (stream_ == nullptr) return;
    if (link_ != nullptr) link_->watch([&] { return stream_->idle(); }, "tune");  // a peer may be gone
    int64_t word = 0;
    kernels_->read(&word, flag_.data(), {1, sizeof(word), 0, 0});
  }

  // Calls as a step makes them: on a device they are recorded, and replayed the next time, unless exchanges need the
  // host.
  template <typename Work>
  void as_step(Work work) {
    if (stream_ == nullptr) return work();
    do {
      stream_->begin_step(!bridge_);
      work();
    } while (!stream_->end_step());
  }

  // Seconds of the slowest rank, all having begun together.
  template <typename Work>
  double once(Work work) {
    communicator_.barrier("tune")->wait();
    const auto start = Clock::now();
    work();
    wait();
    const std::chrono::duration<double> elapsed = Clock::now() - start;
    double slowest[] = {elapsed.count()};
    communicator_.all_reduce(std::span<double>(slowest), ReduceOp::kMax, "tune time")->wait();
    return slowest[0];
  }

  // The median of several, after one to warm up; what takes long needs neither.
  template <typename Work>
  double timed(int repeats, Work work) {
    const double first = once(work);
    if (first > kLongRun && stream_ == nullptr) return first;
    std::vector<double> seconds;
    for (int i = 0; i < repeats; ++i) seconds.push_back(once(work));
    std::nth_element(seconds.begin(), seconds.begin() + repeats / 2, seconds.end());
    return seconds[static_cast<size_t>(repeats / 2)];
  }

  // Memory on every rank; nothing where one of them has not enough.
  DeviceBuffer allocate(int64_t bytes) {
    DeviceBuffer memory;
    int64_t enough[] = {1};
    try {
      memory = DeviceBuffer(*kernels_, bytes);
    } catch (const DeviceError&) {
      enough[0] = 0;
    }
    communicator_.all_reduce(std::span<int64_t>(enough), ReduceOp::kMin, "tune memory")->wait();
    return enough[0] == 1 ? std::move(memory) : DeviceBuffer();
  }

  // Values that differ from one element to the next; their last bits do not matter.
  void fill(const DeviceBuffer& memory, int64_t elements) {
    const int64_t width = byte_size(sizes_.wire);
    const int64_t some = std::min<int64_t>(elements, 1 << 20);
    std::vector<std::byte> values(static_cast<size_t>(some * width));
    for (int64_t i = 0; i < some; ++i) {
      const auto bits = std::bit_cast<uint32_t>(std::sin(static_cast<float>(i * i % 10'007)));
      const uint32_t stored = sizes_.wire == Dtype::kF32 ? bits : bits >> 16;
      std::memcpy(values.data() + i * width, &stored, static_cast<size_t>(width));
    }
    for (int64_t at = 0; at < elements; at += some) {
      const int64_t bytes = std::min(some, elements - at) * width;
      kernels_->write(memory.data() + at * width, values.data(), {1, bytes, 0, 0});
    }
  }

  // `calls` batches one after the other. Negative where memory does not suffice.
  double orthogonalize_seconds(MatrixShape shape, int64_t batch, int repeats, int calls = 1) {
    const int64_t elements = shape.rows * shape.columns;
    const int64_t width = byte_size(sizes_.wire);
    const kernels::OrthogonalizeOptions options{coefficients("polar_express"), sizes_.wire, {}};
    const int64_t scratch =
        std::max(kernels_->orthogonalize_workspace(shape, 1, options),
                 std::min(kernels_->orthogonalize_workspace(shape, batch, options), kernels_->largest_workspace()));
    const DeviceBuffer matrices = allocate(elements * batch * width);
    const DeviceBuffer workspace = allocate(scratch);
    if (matrices.data() == nullptr || workspace.data() == nullptr) return -1;
    fill(matrices, elements * batch);
    std::vector<kernels::UpdateMatrix> list;
    for (int64_t m = 0; m < batch; ++m) list.push_back({matrices.data() + m * elements * width, nullptr, nullptr});
    return timed(repeats, [&] {
      as_step([&] {
        for (int i = 0; i < calls; ++i) kernels_->orthogonalize({options, shape, list, {workspace.data(), scratch}});
      });
    });
  }

  void rates() {
    CostTable& table = result_.table;
    table.rates.clear();
    for (const int64_t side : sizes_.sides) {
      next(fmt::format("orthogonalize {0}x{0}", side));
      double flops = 0;
      double seconds = 0;
      for (const int64_t ratio : {int64_t{1}, kGramRatio}) {
        const MatrixShape shape{side, side * ratio};
        const int64_t batch = std::clamp<int64_t>(sizes_.batch_elements / (shape.rows * shape.columns), 1, 256);
        if (ratio > 1 && side == sizes_.sides.back()) continue;  // takes longest, and no news after the square one
        const double all = flops_of(shape) * static_cast<double>(batch);
        const double taken = orthogonalize_seconds(shape, batch, 5);
        if (taken < 0) continue;
        result_.rates.push_back({shape.rows, shape.columns, batch, all / taken / 1e9});
        flops += all;
        seconds += taken;
      }
      if (flops == 0) break;
      table.rates.push_back({side, std::max<int64_t>(1, std::llround(flops / seconds / 1e9))});
    }
  }

  void batch_start() {
    next("start of a batch");
    result_.table.batch_ns = nanoseconds(orthogonalize_seconds({2, 2}, 1, 101, kStarts) / kStarts);
  }

  // The two passes over elements that every step makes.
  struct Passes {
    DeviceBuffer memory;
    std::vector<kernels::MomentumBlock> pack;
    std::vector<kernels::ApplyBlock> apply;
  };
  Passes passes(int64_t count) {
    Passes passes{DeviceBuffer(*kernels_, count * (4 + 4 + 2)), {}, {}};
    auto* const grad = passes.memory.as<float>();
    float* const momentum = grad + count;
    float* const update = momentum + count;
    passes.pack.push_back({.rows = 1,
                           .columns = count,
                           .grad = grad,
                           .grad_stride = count,
                           .momentum = momentum,
                           .momentum_stride = count,
                           .update = update,
                           .update_stride = count});
    kernels::ApplyBlock apply{.rows = 1, .columns = count, .update = update};
    apply.update_stride = count;
    apply.weight.data = grad;
    apply.weight.stride = count;
    passes.apply.push_back(apply);
    return passes;
  }

  void memory() {
    next("memory");
    const Passes all = passes(sizes_.memory_elements);
    const double seconds = timed(5, [&] {
      as_step([&] {
        kernels_->momentum_pack({}, all.pack);
        kernels_->apply({}, all.apply);
      });
    });
    const double bytes = static_cast<double>(sizes_.memory_elements * (plan::kMomentumBytes + plan::kApplyBytes));
    result_.table.memory_mbps = std::llround(bytes / seconds / 1e6);
  }

  // An exchange in which this rank sends `bytes` to each of the `peers` ranks after it. On a device it is enqueued, and
  // there is no request.
  std::unique_ptr<Request> exchange(int32_t peers, int64_t bytes) {
    if (buffers_.size() < 2 * bytes * peers) buffers_ = DeviceBuffer(*kernels_, 2 * bytes * peers);
    const int32_t size = communicator_.size();
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (int32_t k = 0; k < peers; ++k) {
      sends.push_back({(communicator_.rank() + k + 1) % size, buffers_.data() + 2 * k * bytes, bytes});
      receives.push_back({(communicator_.rank() + size - k - 1) % size, buffers_.data() + (2 * k + 1) * bytes, bytes});
    }
    if (stream_ == nullptr) return communicator_.exchange(sends, receives, "tune exchange");
    void* const beside = stream_->fork();
    const int64_t numbers[] = {peers, bytes, reinterpret_cast<intptr_t>(buffers_.data())};
    stream_->add_to_key(numbers);
    if (!stream_->dry_run()) link_->exchange(sends, receives, "tune exchange", beside);
    return nullptr;
  }
  double exchange_seconds(int repeats, int32_t peers, int64_t bytes) {
    return timed(repeats, [&] { as_step([&] { finish(exchange(peers, bytes)); }); });
  }
  void finish(const std::unique_ptr<Request>& request) {
    if (request != nullptr) request->wait();
    if (stream_ != nullptr) stream_->join(stream_->record_event());
  }

  // exchange + m * message: from exchanges without any message and with one to every other rank.
  void latencies() {
    next("latency");
    constexpr int64_t kBytes = 64;
    const int32_t peers = communicator_.size() - 1;
    const double none = exchange_seconds(101, 0, kBytes);
    const double all = exchange_seconds(101, peers, kBytes);
    result_.table.exchange_ns = nanoseconds(none);
    result_.table.message_ns = nanoseconds(std::max(0.0, all - none) / peers);
  }

  void bandwidth() {
    next("bandwidth");
    alone_seconds_ = exchange_seconds(9, 1, sizes_.message_bytes);
    result_.table.intra_node_mbps =
        std::max<int64_t>(10, std::llround(static_cast<double>(sizes_.message_bytes) / alone_seconds_ / 1e6));
  }

  // An exchange beside a computation of about its length, which looks after it now and then as a step does.
  void overlap() {
    next("overlap");
    const Passes one = passes(sizes_.piece_elements);
    const auto compute = [&](int pieces, Request* request) {
      for (int i = 0; i < pieces; ++i) {
        kernels_->momentum_pack({}, one.pack);
        if (request != nullptr) request->test();
      }
    };
    const double piece = timed(101, [&] { as_step([&] { compute(1, nullptr); }); });
    const int pieces = static_cast<int>(std::clamp(alone_seconds_ / piece, 1.0, 10'000.0));
    const double alone = timed(9, [&] { as_step([&] { compute(pieces, nullptr); }); });
    const double both = timed(9, [&] {
      as_step([&] {
        const std::unique_ptr<Request> request = exchange(1, sizes_.message_bytes);
        compute(pieces, request.get());
        finish(request);
      });
    });
    const double hidden = (alone + alone_seconds_ - both) / std::min(alone, alone_seconds_);
    result_.table.overlap_percent = std::clamp<int64_t>(std::llround(100 * hidden), 0, 100);
  }

  static int64_t nanoseconds(double seconds) {
    return std::clamp<int64_t>(std::llround(seconds * 1e9), 0, 1'000'000'000);
  }

  Communicator& communicator_;
  const TuneOptions& options_;
  const Sizes sizes_;
  const std::unique_ptr<kernels::Kernels> kernels_;
  kernels::AsyncDevice* const stream_;  // null: calls return when their work is done
  StreamCommunicator* link_ = nullptr;  // for exchanges there
  std::optional<engine::HostBridge> bridge_;
  DeviceBuffer flag_;
  DeviceBuffer buffers_;  // for messages
  TuneResult result_;
  double alone_seconds_ = 0;  // of a long exchange
  int step_ = 0;
  int steps_ = 1;
};

}  // namespace

TuneResult tune(Communicator& communicator, const Device& device, const TuneOptions& options) {
  return Tuner(communicator, device, options).run();
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
