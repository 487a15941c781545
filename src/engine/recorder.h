// Where the time of a step went: sums a stage and, on request, every span.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "muster/optimizer.h"

namespace muster::engine {

inline int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class Recorder {
 public:
  void start(int64_t step, bool trace) {
    stats = StepStats{};
    stats.step = step;
    events_.clear();
    trace_ = trace;
    begin_ns_ = now_ns();
  }
  void finish() {
    stats.total_ns = now_ns() - begin_ns_;
    last_stats = std::move(stats);
    last_events = std::move(events_);
  }
  bool tracing() const { return trace_; }

  // A stage lasts until the span is destroyed. Spans do not nest.
  class Span {
   public:
    Span(Recorder& recorder, Stage stage, int32_t wave, std::string detail)
        : recorder_(recorder), stage_(stage), wave_(wave), detail_(std::move(detail)), begin_ns_(now_ns()) {}
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;
    ~Span() { recorder_.add(stage_, wave_, std::move(detail_), begin_ns_); }

   private:
    Recorder& recorder_;
    const Stage stage_;
    const int32_t wave_;
    std::string detail_;
    const int64_t begin_ns_;
  };
  Span span(Stage stage, int32_t wave = -1, std::string detail = {}) { return {*this, stage, wave, std::move(detail)}; }

  // An exchange that began some time ago has ended.
  void exchanged(std::string name, int32_t wave, int64_t begin_ns, int64_t bytes) {
    if (trace_) events_.push_back({std::move(name), true, wave, begin_ns, now_ns(), bytes});
  }

  StepStats stats;       // of what is under way
  StepStats last_stats;  // of what was finished last
  std::vector<TraceEvent> last_events;

 private:
  void add(Stage stage, int32_t wave, std::string detail, int64_t begin_ns) {
    const int64_t end_ns = now_ns();
    stats.stage_ns[static_cast<size_t>(stage)] += end_ns - begin_ns;
    if (!trace_) return;
    std::string label(name(stage));
    if (!detail.empty()) label += ' ' + detail;
    events_.push_back({std::move(label), false, wave, begin_ns, end_ns, 0});
  }

  std::vector<TraceEvent> events_;
  bool trace_ = false;
  int64_t begin_ns_ = 0;
};

}  // namespace muster::engine
