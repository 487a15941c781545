// The order in which a step's waves run: the one scheduler of waves.
//
// A whole step runs every wave. An overlapped step starts while gradients still come: each wave as soon as it is ready.
// All ranks go through the same stages in the same order, because they call the same collectives; so a wave that is
// ready early waits for its turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/step/status.h"
#include "engine/step/step_timer.h"
#include "engine/step/wave_executor.h"
#include "engine/step/wave_readiness.h"

namespace muster::engine {

class Pipeline {
 public:
  // All outlive this object. With n waves in flight (Plan::in_flight), wave w + n arrives while w computes and w - n
  // returns.
  Pipeline(WaveExecutor& executor, StepTimer& timer, const Plan& plan)
      : executor_(executor), timer_(timer), in_flight_(static_cast<size_t>(plan.in_flight)) {}

  // Runs the step that the executor has started, with every wave ready.
  void run();

  // Begins the same step, to be run wave by wave, with so many of them in flight. Where nothing travels it is 0: each
  // wave is finished before the next starts.
  void begin(WaveReadiness& readiness, size_t in_flight);
  bool under_way() const { return !stages_.empty(); }
  bool started() const { return started_ > 0; }  // weights may be partly updated
  // True if advance() would do something.
  bool can_advance();
  // Carries out stages as far as possible without waiting for gradients or other ranks. Keeps a refusal for finish().
  void advance();
  // Carries out the other stages, waiting; on a device they are enqueued. On the host, throws InvalidArgument on every
  // rank if any refuses the step.
  void finish();
  void drop();

  size_t in_flight() const { return in_flight_; }

 private:
  enum class Action : uint8_t {
    kAsk,    // sends this rank's control words for the wave
    kAgree,  // receives their sum
    kStart,  // momentum, exchange in
    kCompute,
    kFinish,
  };
  struct Stage {
    Action action;
    size_t wave;
  };

  void line_up(size_t in_flight);
  bool possible(const Stage& stage);
  void carry_out(const Stage& stage);

  WaveExecutor& executor_;
  StepTimer& timer_;
  const size_t in_flight_;              // of a whole step
  WaveReadiness* readiness_ = nullptr;  // null: every wave is ready and agreed on
  std::vector<Stage> stages_;           // of the step under way
  size_t next_ = 0;                     // stage
  size_t started_ = 0;                  // waves
  StepStatus status_;                   // kRefused: all ranks know
};

}  // namespace muster::engine
