#include "engine/step/step_timer.h"

#include <chrono>
#include <utility>

#include <fmt/format.h>

namespace muster {

std::string_view name(Stage stage) {
  constexpr std::string_view kNames[kStages] = {"control",   "pack",        "wait in", "assemble", "orthogonalize",
                                                "normalize", "elementwise", "stage",   "wait out", "apply"};
  return kNames[static_cast<size_t>(stage)];
}

namespace engine {

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void StepTimer::start(int64_t step, bool trace) {
  begin_ns_ = now_ns();
  trace_ = trace;
  restart(step);
}

void StepTimer::restart(int64_t step) {
  stats = StepStats{};
  stats.step = step;
  events_.clear();
}

void StepTimer::finish() {
  stats.total_ns = now_ns() - begin_ns_;
  if (device_ != nullptr && trace_) {
    const std::vector<int64_t> times = device_->times_ns();
    for (TraceEvent& event : events_) {
      event.begin_ns = times.at(static_cast<size_t>(event.begin_ns));
      event.end_ns = times.at(static_cast<size_t>(event.end_ns));
    }
  }
  last_stats = std::exchange(stats, {});
  last_events = std::move(events_);
}

StepTimer::Scope::Scope(StepTimer& timer, Stage stage, int32_t wave, std::string detail)
    : timer_(timer),
      stage_(stage),
      wave_(wave),
      detail_(std::move(detail)),
      begin_ns_(now_ns()),
      begin_(timer.timestamp(Clock::kKernels)),
      has_range_(timer.device_ != nullptr && !timer.device_->dry_run()) {
  if (has_range_) timer.device_->push_range(label());
}

StepTimer::Scope::~Scope() {
  if (has_range_) timer_.device_->pop_range();
  timer_.stats.stage_ns[static_cast<size_t>(stage_)] += now_ns() - begin_ns_;
  if (!timer_.trace_) return;
  timer_.events_.push_back({label(), false, wave_, begin_, timer_.timestamp(Clock::kKernels), 0});
}

std::string StepTimer::Scope::label() const {
  return detail_.empty() ? std::string(name(stage_)) : fmt::format("{} {}", name(stage_), detail_);
}

int64_t StepTimer::timestamp(Clock clock) {
  if (!trace_) return 0;
  return device_ != nullptr ? device_->record_time(clock == Clock::kExchanges) : now_ns();
}

void StepTimer::add_exchange(TraceEvent event) {
  event.exchange = true;
  if (trace_) events_.push_back(std::move(event));
}

}  // namespace engine

}  // namespace muster
