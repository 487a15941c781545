// What became of a step, and whether an optimizer can make another.
#pragma once

#include <cstdint>
#include <utility>

#include "muster/error.h"

namespace muster::engine {

struct StepStatus {
  enum class State : uint8_t {
    kOk,
    kRefused,  // nothing was changed; the optimizer can go on
    kBroken,   // weights may be partly updated; a state must be loaded first
  };
  State state = State::kOk;
  Failure reason{};  // empty if kOk

  static StepStatus refusal(Failure reason) { return {State::kRefused, std::move(reason)}; }
  bool refused() const { return state == State::kRefused; }
  bool broken() const { return state == State::kBroken; }
};

// The status of an optimizer: whether it is broken, and which refusals its caller has not heard of. On a device those
// of other ranks are known only when a later call looks.
class OptimizerStatus {
 public:
  bool broken() const { return status_.broken(); }
  const Failure& reason() const { return status_.reason; }
  void break_off(Failure why) { status_ = {StepStatus::State::kBroken, std::move(why)}; }
  void restore() { status_ = {}; }
  void require_whole() const {
    if (broken()) throw CommError(reason());
  }

  void add_refusal(const Failure& why) {
    unreported_.reason = unreported_.refused() ? unreported_.reason.followed_by(why) : why;
    unreported_.state = StepStatus::State::kRefused;
  }
  // Throws InvalidArgument if there are refusals that the caller has not heard of.
  void report_refusals() {
    if (unreported_.refused()) throw InvalidArgument(std::exchange(unreported_, {}).reason);
  }
  void forget_refusals() { unreported_ = {}; }

 private:
  StepStatus status_;      // kOk or kBroken
  StepStatus unreported_;  // kOk or kRefused
};

}  // namespace muster::engine
