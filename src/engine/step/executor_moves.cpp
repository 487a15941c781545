// What an executor moves: messages, and rows from one place to another.
#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/offset_pointer.h"
#include "engine/step/executor.h"

namespace muster::engine {

// Without the number of the step: on a device ranks learn only behind their messages that they are at different ones.
std::string Executor::label_of(size_t w, std::string_view direction) { return fmt::format("wave {} {}", w, direction); }

Executor::Flight Executor::exchange(const Run& run, size_t w, const std::vector<StagedMessage>& sends,
                                    const std::vector<StagedMessage>& receives, std::string_view direction) {
  std::vector<Send> out;
  std::vector<Receive> in;
  Flight flight;
  flight.begin_ns = now_ns();
  for (const StagedMessage& t : sends) out.push_back({t.peer, part(run, w) + t.range.offset, t.range.bytes});
  for (const StagedMessage& t : receives) in.push_back({t.peer, part(run, w) + t.range.offset, t.range.bytes});
  flight.bytes = count_traffic(sends, receives);
  if (stream_ == nullptr) {
    flight.request = run.link.host->exchange(out, in, label_of(w, direction));
  } else if (run.link.host->size() > 1) {
    enqueue(run, w, out, in, direction, flight);
  }
  return flight;
}

// The bytes of an exchange.
int64_t Executor::count_traffic(std::span<const StagedMessage> sends, std::span<const StagedMessage> receives) {
  int64_t sent = 0;
  int64_t received = 0;
  for (const StagedMessage& t : sends) sent += t.range.bytes;
  for (const StagedMessage& t : receives) received += t.range.bytes;
  StepStats& stats = recorder_.stats;
  stats.bytes_sent += sent;
  stats.bytes_received += received;
  stats.messages_sent += std::ssize(sends);
  if (sent + received > 0) ++stats.exchanges;
  return sent + received;
}

void Executor::count_traffic(const Program& program) {
  for (const WaveProgram& wave : program.waves) {
    count_traffic(wave.send_in, wave.receive_in);
    count_traffic(wave.send_out, wave.receive_out);
  }
}

// Beside the kernels, and recorded with them.
void Executor::enqueue(const Run& run, size_t w, std::span<const Send> sends, std::span<const Receive> receives,
                       std::string_view direction, Flight& flight) {
  std::vector<int64_t> numbers{static_cast<int64_t>(sends.size())};
  const auto add = [&](int32_t peer, const void* data, int64_t bytes) {
    numbers.insert(numbers.end(), {peer, reinterpret_cast<intptr_t>(data), bytes});
  };
  for (const Send& m : sends) add(m.peer, m.data, m.bytes);
  for (const Receive& m : receives) add(m.peer, m.data, m.bytes);
  void* const beside = stream_->fork();
  stream_->add_to_key(numbers);
  const int64_t begin = recorder_.stamp(true);
  if (!stream_->dry_run()) run.link.stream->exchange(sends, receives, label_of(w, direction), beside);
  recorder_.exchanged(fmt::format("wave {} {}", w, direction), static_cast<int32_t>(w), begin, recorder_.stamp(true),
                      flight.bytes);
  flight.mark = stream_->record_event();
}

void Executor::land(Flight& flight, size_t w, Stage stage, std::string_view direction) {
  if (stream_ != nullptr) {
    if (flight.mark >= 0) stream_->join(flight.mark);
    return;
  }
  {
    const auto timed = recorder_.span(stage, static_cast<int32_t>(w));
    flight.request->wait();
  }
  if (flight.bytes > 0) {
    recorder_.exchanged(fmt::format("wave {} {}", w, direction), static_cast<int32_t>(w), flight.begin_ns, now_ns(),
                        flight.bytes);
  }
  flight = {};
}

void Executor::poll() {
  for (InFlight& wave : in_flight_) {
    if (wave.in.request != nullptr) wave.in.request->test();
    if (wave.out.request != nullptr) wave.out.request->test();
  }
}

void Executor::clear(const Run& run, size_t w, std::span<const ByteRange> ranges) {
  constexpr int64_t kWidth = 2;  // divides what any dtype takes
  std::vector<kernels::CopyBlock> blocks;
  for (const ByteRange& range : ranges) {
    const int64_t columns = range.bytes / kWidth;
    blocks.push_back({1, columns, nullptr, columns, part(run, w) + range.offset, columns});
  }
  if (!blocks.empty()) kernels_.copy(kWidth, blocks);
}

void Executor::copy(const Run& run, size_t w, std::span<const CopyStep> steps) {
  std::vector<kernels::CopyBlock> blocks;
  std::byte* const base = part(run, w);
  for (const CopyStep& step : steps) {
    blocks.push_back({step.rows, step.columns, base + step.from * wire_bytes_, step.from_stride,
                      base + step.to * wire_bytes_, step.to_stride});
  }
  if (!blocks.empty()) kernels_.copy(wire_bytes_, blocks);
}

void Executor::copy_lines(const Run& run, size_t w, std::span<const LineStep> steps, Lines direction) {
  std::vector<kernels::CopyBlock> blocks;
  auto* const f32 = reinterpret_cast<float*>(part(run, w));
  for (const LineStep& step : steps) {
    float* const kept = state_.variance(step.parameter, step.held);
    float* const staged = f32 + step.staged;
    const bool in = direction == Lines::kToPart;
    blocks.push_back({1, step.count, in ? kept : staged, step.count, in ? staged : kept, step.count});
  }
  if (!blocks.empty()) kernels_.copy(sizeof(float), blocks);
}

void Executor::copy_lines(const Run& run, size_t w, std::span<const CopyStep> steps) {
  std::vector<kernels::CopyBlock> blocks;
  auto* const f32 = reinterpret_cast<float*>(part(run, w));
  for (const CopyStep& step : steps) {
    blocks.push_back({step.rows, step.columns, f32 + step.from, step.from_stride, f32 + step.to, step.to_stride});
  }
  if (!blocks.empty()) kernels_.copy(sizeof(float), blocks);
}

// Sums in the order of the ranks, in f32.
void Executor::sum_replicas(const Run& run, size_t w) {
  const WaveProgram& wave = run.wave(w);
  if (wave.sum.empty()) return;
  const auto timed = recorder_.span(Stage::kAssemble, static_cast<int32_t>(w), "replicas");
  auto* const f32 = reinterpret_cast<float*>(part(run, w));
  clear(run, w, wave.sums);
  // As many in one call as do not meet.
  std::vector<kernels::AddBlock> blocks;
  std::map<int64_t, int64_t> taken;  // elements, by their first
  Dtype dtype = Dtype::kF32;
  const auto flush = [&] {
    if (!blocks.empty()) kernels_.add(dtype, blocks);
    blocks.clear();
    taken.clear();
  };
  for (const SumStep& step : wave.sum) {
    const Dtype own = problem_.parameters[step.parameter].grad_dtype;
    const StridedBlock& b = step.block;
    const bool mine = step.staged < 0;
    const void* const from = mine ? base::offset_by(run.input.gradients[step.parameter], b.first, byte_size(own))
                                  : static_cast<const void*>(part(run, w) + step.staged);
    if (b.elements() == 0) continue;
    const int64_t end = b.second + (b.rows - 1) * b.second_stride + b.columns;
    const auto after = taken.lower_bound(end);
    const bool meets = after != taken.begin() && std::prev(after)->second > b.second;
    if (own != dtype || meets) flush();
    dtype = own;
    taken[b.second] = end;
    blocks.push_back({b.rows, b.columns, from, mine ? b.first_stride : b.columns, f32 + b.second, b.second_stride});
  }
  flush();
  std::vector<kernels::DivideRange> ranges;
  for (const AverageStep& step : wave.average) {
    ranges.push_back({step.count, f32 + step.sum, static_cast<float>(step.replicas)});
  }
  if (!ranges.empty()) kernels_.divide(ranges);
}

// Weights of both widths, in or out of messages.
void Executor::copy_weights(const Run& run, size_t w, std::span<const WeightStep> steps, bool out) {
  for (const int64_t width : {2, 4}) {
    std::vector<kernels::CopyBlock> blocks;
    for (const WeightStep& step : steps) {
      if (weight_bytes(memory_[step.parameter].form) != width) continue;
      const StridedBlock& b = step.block;
      void* const shard = base::offset_by(memory_[step.parameter].weight, b.first, width);
      std::byte* const staged = part(run, w) + step.staged;
      if (out) {
        blocks.push_back({b.rows, b.columns, shard, b.first_stride, staged, b.columns});
      } else {
        blocks.push_back({b.rows, b.columns, staged, b.columns, shard, b.first_stride});
      }
    }
    if (!blocks.empty()) kernels_.copy(width, blocks);
  }
}

}  // namespace muster::engine
