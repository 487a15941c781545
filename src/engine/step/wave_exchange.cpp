// Messages of a wave: on the host a request per exchange, on a device an event on the stream of exchanges.
#include <fmt/format.h>

#include "engine/step/wave_executor.h"

namespace muster::engine {

namespace {

// Labels do not contain the number of the step: on a device ranks learn only after their messages that their numbers
// differ.
std::string label_of(size_t w, std::string_view direction) { return fmt::format("wave {} {}", w, direction); }

}  // namespace

WaveExecutor::Exchange WaveExecutor::exchange(size_t w, const std::vector<StagedMessage>& sends,
                                              const std::vector<StagedMessage>& receives, std::string_view direction) {
  std::vector<Send> out;
  std::vector<Receive> in;
  Exchange exchange;
  exchange.begin_ns = now_ns();
  for (const StagedMessage& t : sends) out.push_back({t.peer, part(w) + t.range.offset, t.range.bytes});
  for (const StagedMessage& t : receives) in.push_back({t.peer, part(w) + t.range.offset, t.range.bytes});
  exchange.bytes = count_traffic(sends, receives);
  if (context_.device == nullptr) {
    exchange.request = context_.link.host->exchange(out, in, label_of(w, direction));
  } else if (!context_.link.alone()) {
    enqueue(w, out, in, direction, exchange);
  }
  return exchange;
}

// Exchanges run on their own stream, and are captured with the kernels.
void WaveExecutor::enqueue(size_t w, std::span<const Send> sends, std::span<const Receive> receives,
                           std::string_view direction, Exchange& exchange) {
  kernels::AsyncDevice& device = *context_.device;
  StepTimer& timer = context_.timer;
  std::vector<int64_t> key{static_cast<int64_t>(sends.size())};
  const auto add = [&](int32_t peer, const void* data, int64_t bytes) {
    key.insert(key.end(), {peer, reinterpret_cast<intptr_t>(data), bytes});
  };
  for (const Send& m : sends) add(m.peer, m.data, m.bytes);
  for (const Receive& m : receives) add(m.peer, m.data, m.bytes);
  void* const stream = device.fork();
  device.add_to_key(key);
  const int64_t begin = timer.timestamp(StepTimer::Clock::kExchanges);
  if (!device.dry_run()) context_.link.stream->exchange(sends, receives, label_of(w, direction), stream);
  const int64_t end = timer.timestamp(StepTimer::Clock::kExchanges);
  timer.add_exchange({.name = label_of(w, direction),
                      .wave = static_cast<int32_t>(w),
                      .begin_ns = begin,
                      .end_ns = end,
                      .bytes = exchange.bytes});
  exchange.event = device.record_event();
}

void WaveExecutor::wait(Exchange& exchange, size_t w, Stage stage, std::string_view direction) {
  if (context_.device != nullptr) {
    if (exchange.event >= 0) context_.device->join(exchange.event);
    return;
  }
  {
    const auto timed = time(stage, w);
    exchange.request->wait();
  }
  if (exchange.bytes > 0) {
    context_.timer.add_exchange({.name = label_of(w, direction),
                                 .wave = static_cast<int32_t>(w),
                                 .begin_ns = exchange.begin_ns,
                                 .end_ns = now_ns(),
                                 .bytes = exchange.bytes});
  }
  exchange = {};
}

void WaveExecutor::poll() {
  for (WaveExchanges& wave : exchanges_) {
    if (wave.in.request != nullptr) wave.in.request->test();
    if (wave.out.request != nullptr) wave.out.request->test();
  }
}

int64_t WaveExecutor::count_traffic(std::span<const StagedMessage> sends, std::span<const StagedMessage> receives) {
  int64_t sent = 0;
  int64_t received = 0;
  for (const StagedMessage& t : sends) sent += t.range.bytes;
  for (const StagedMessage& t : receives) received += t.range.bytes;
  stats().bytes_sent += sent;
  stats().bytes_received += received;
  stats().messages_sent += std::ssize(sends);
  if (sent + received > 0) ++stats().exchanges;
  return sent + received;
}

void WaveExecutor::count_traffic() {
  for (const WaveProgram& wave : step_.program->waves) {
    count_traffic(wave.send_in, wave.receive_in);
    count_traffic(wave.send_out, wave.receive_out);
  }
}

}  // namespace muster::engine
