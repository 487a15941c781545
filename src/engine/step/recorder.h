// Where the time of a step went: sums a stage and, on request, every span.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "kernels/async_device.h"
#include "muster/optimizer.h"

namespace muster::engine {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class Recorder {
 public:
  // Of a device whose calls return early: times of a trace are then its own, and those of stages the host's.
  void follow(kernels::AsyncDevice* stream) { stream_ = stream; }

  void start(int64_t step, bool trace) {
    begin_ns_ = now_ns();
    trace_ = trace;
    restart(step);
  }
  // A step's time is that between its start or resume() and pause() or finish().
  void pause() { paused_ns_ = now_ns(); }
  void resume() { begin_ns_ += now_ns() - paused_ns_; }
  // The calls of a step are made again.
  void restart(int64_t step) {
    stats = StepStats{};
    stats.step = step;
    events_.clear();
  }
  void finish() {
    stats.total_ns = now_ns() - begin_ns_;
    if (stream_ != nullptr && trace_) {
      const std::vector<int64_t> times = stream_->times_ns();
      for (TraceEvent& event : events_) {
        event.begin_ns = times.at(static_cast<size_t>(event.begin_ns));
        event.end_ns = times.at(static_cast<size_t>(event.end_ns));
      }
    }
    last_stats = std::exchange(stats, {});
    last_events = std::move(events_);
  }
  bool tracing() const { return trace_; }

  // A stage lasts until the span is destroyed. Spans do not nest.
  class Span {
   public:
    Span(Recorder& recorder, Stage stage, int32_t wave, std::string detail)
        : recorder_(recorder),
          stage_(stage),
          wave_(wave),
          detail_(std::move(detail)),
          begin_ns_(now_ns()),
          stamp_(recorder.stamp(false)) {
      ranged_ = recorder.stream_ != nullptr && !recorder.stream_->dry_run();
      if (ranged_) recorder.stream_->push_range(label());
    }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;
    ~Span() {
      if (ranged_) recorder_.stream_->pop_range();
      recorder_.add(*this);
    }

   private:
    friend class Recorder;
    std::string label() const {
      return detail_.empty() ? std::string(name(stage_)) : fmt::format("{} {}", name(stage_), detail_);
    }

    Recorder& recorder_;
    const Stage stage_;
    const int32_t wave_;
    const std::string detail_;
    const int64_t begin_ns_;
    const int64_t stamp_;
    bool ranged_ = false;  // shown to profilers
  };
  Span span(Stage stage, int32_t wave = -1, std::string detail = {}) { return {*this, stage, wave, std::move(detail)}; }

  // Now, as trace events have it: the number of a stamp where the device has a clock of its own.
  int64_t stamp(bool exchanges) {
    if (!trace_) return 0;
    return stream_ != nullptr ? stream_->record_time(exchanges) : now_ns();
  }

  // An exchange has ended.
  void exchanged(std::string name, int32_t wave, int64_t begin, int64_t end, int64_t bytes) {
    if (trace_) events_.push_back({std::move(name), true, wave, begin, end, bytes});
  }

  StepStats stats;       // of what is under way
  StepStats last_stats;  // of what was finished last
  std::vector<TraceEvent> last_events;

 private:
  void add(const Span& span) {
    stats.stage_ns[static_cast<size_t>(span.stage_)] += now_ns() - span.begin_ns_;
    if (trace_) events_.push_back({span.label(), false, span.wave_, span.stamp_, stamp(false), 0});
  }

  std::vector<TraceEvent> events_;
  kernels::AsyncDevice* stream_ = nullptr;
  bool trace_ = false;
  int64_t begin_ns_ = 0;
  int64_t paused_ns_ = 0;
};

}  // namespace muster::engine
