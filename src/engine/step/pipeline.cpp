#include "engine/step/pipeline.h"

#include "muster/error.h"

namespace muster::engine {

void Pipeline::run() {
  readiness_ = nullptr;
  line_up(in_flight_);
  finish();
}

void Pipeline::begin(WaveReadiness& readiness, size_t in_flight) {
  readiness_ = &readiness;
  line_up(in_flight);
}

void Pipeline::line_up(size_t in_flight) {
  const size_t waves = executor_.waves();
  stages_.clear();
  next_ = 0;
  started_ = 0;
  status_ = {};
  for (size_t w = 0; w < waves + 2 * in_flight; ++w) {
    if (w < waves && readiness_ != nullptr) stages_.insert(stages_.end(), {{Action::kAsk, w}, {Action::kAgree, w}});
    if (w < waves) stages_.push_back({Action::kStart, w});
    if (w >= in_flight && w - in_flight < waves) stages_.push_back({Action::kCompute, w - in_flight});
    if (w >= 2 * in_flight) stages_.push_back({Action::kFinish, w - 2 * in_flight});
  }
}

bool Pipeline::can_advance() { return next_ < stages_.size() && !status_.refused() && possible(stages_[next_]); }

void Pipeline::advance() {
  executor_.poll();
  while (can_advance()) {
    try {
      carry_out(stages_[next_]);
    } catch (const InvalidArgument& error) {
      status_ = StepStatus::refusal(error.failure());
      return;
    }
    ++next_;
  }
}

void Pipeline::finish() {
  for (; next_ < stages_.size() && !status_.refused(); ++next_) carry_out(stages_[next_]);
  if (status_.refused()) throw InvalidArgument(status_.reason);
  drop();
}

void Pipeline::drop() {
  if (readiness_ != nullptr) readiness_->drop();
  stages_.clear();
}

bool Pipeline::possible(const Stage& stage) {
  switch (stage.action) {
    case Action::kAsk:
      return readiness_->ready(stage.wave);
    case Action::kAgree:
      return readiness_->answered();
    case Action::kStart:
      return true;
    case Action::kCompute:
      return executor_.arrived(stage.wave);
    case Action::kFinish:
      return executor_.returned(stage.wave);
  }
  throw Internal("unknown stage");
}

void Pipeline::carry_out(const Stage& stage) {
  const size_t w = stage.wave;
  switch (stage.action) {
    case Action::kAsk:
      return readiness_->ask(w);
    case Action::kAgree:
      return readiness_->agree(w);
    case Action::kStart:
      ++started_;
      if (readiness_ != nullptr && !readiness_->closed()) ++timer_.stats.early_waves;
      return executor_.start_in(w);
    case Action::kCompute:
      executor_.compute(w);
      return executor_.start_out(w);
    case Action::kFinish:
      return executor_.finish(w);
  }
}

}  // namespace muster::engine
