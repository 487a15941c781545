// Measures where the time of a step goes: the sum per stage and, on request, a trace event per stage and exchange.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/async_device.h"
#include "muster/optimizer.h"

namespace muster::engine {

int64_t now_ns();  // by the steady clock

class StepTimer {
 public:
  // Stage times are the host's. With a device, trace events have the device's times. Null: calls of the kernels return
  // when their work is done.
  void follow(kernels::AsyncDevice* device) { device_ = device; }

  void start(int64_t step, bool trace);
  // The time between pause() and resume() does not count.
  void pause() { paused_ns_ = now_ns(); }
  void resume() { begin_ns_ += now_ns() - paused_ns_; }
  // Drops what was counted: the calls of the step are made again.
  void restart(int64_t step);
  void finish();  // `stats` and the events become those of the last step
  bool tracing() const { return trace_; }

  // Which of a device's streams takes a time.
  enum class Clock : uint8_t { kKernels, kExchanges };

  // Adds the time from its construction to its destruction to a stage. Scopes do not nest.
  class Scope {
   public:
    Scope(StepTimer& timer, Stage stage, int32_t wave, std::string detail);
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;
    ~Scope();

   private:
    std::string label() const;

    StepTimer& timer_;
    const Stage stage_;
    const int32_t wave_;
    const std::string detail_;
    const int64_t begin_ns_;
    const int64_t begin_;   // a timestamp() for the trace
    const bool has_range_;  // shown to profilers
  };
  Scope time(Stage stage, int32_t wave = -1, std::string detail = {}) {
    return {*this, stage, wave, std::move(detail)};
  }

  // A time for a trace event: nanoseconds or, on a device, the number of an event whose time finish() reads. 0 without
  // a trace.
  int64_t timestamp(Clock clock);
  void add_exchange(TraceEvent event);  // dropped without a trace

  StepStats stats;       // of the step under way
  StepStats last_stats;  // of the last finished step
  std::vector<TraceEvent> last_events;

 private:
  std::vector<TraceEvent> events_;
  kernels::AsyncDevice* device_ = nullptr;
  bool trace_ = false;
  int64_t begin_ns_ = 0;
  int64_t paused_ns_ = 0;
};

}  // namespace muster::engine
