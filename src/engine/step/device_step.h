// A step on a device whose calls return before their work is done. What ranks agree on stays there; the host learns of
// it when it settles the step.
//
// All ranks make the same calls, whatever one of them refuses: a rank that refuses enqueues a step without gradients,
// by the last hyperparameters that were valid, and the device changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>

#include "engine/step/step_path.h"

namespace muster::engine {

class DeviceStep final : public StepPath {
 public:
  DeviceStep(const StepContext& context, const OptimizerOptions& options, OptimizerStatus& status);

  const StepStats& step(const StepRequest& request) override;
  void begin(const StepRequest& request) override;
  void ready(int32_t parameter, void* gradient) override;
  const StepStats& finish(const StepRequest& request) override;
  double grad_norm(const StepRequest& request) override;

  void reserve(std::span<const Group> groups) override;
  void settle() override { settle_until(0); }
  void drop() override;

 private:
  // A step that the device was given and whose outcome the host has not read.
  struct Submitted {
    int64_t device_step = 0;
    int64_t number = 0;
    StepOptions options;
    StepStatus own;  // kRefused: the caller has been told
  };
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  // This rank's words, and the request that its calls go by.
  struct Prepared {
    ControlWords words;
    StepRequest request;
    bool refuses() const { return words.status.refused(); }
  };
  Prepared prepare(const StepRequest& request);
  std::span<const float> as_many(std::span<const float> factors) const;
  // Makes the calls of a step, again if they turn out to differ from the captured ones.
  template <typename Calls>
  void make_calls(const StepRequest& request, Calls calls);
  void enqueue(const Prepared& step);
  // The last stats, which are this step's unless it is known to be refused. Throws refusals that are not yet reported.
  const StepStats& report(bool refused);
  StepInput input_of(const StepRequest& request);
  // Reads outcomes, waiting, until at most so many steps are in flight. True if the last one it read was refused. An
  // overlapped step that had begun and then was refused breaks off.
  bool settle_until(size_t in_flight);
  bool settle_oldest();
  void drop_stale_graphs(std::string_view what);
  [[noreturn]] static void refuse(std::string_view what, const StepStatus& own);

  kernels::AsyncDevice& device_;
  const bool graph_;  // OptimizerOptions::graph
  const std::vector<void*> no_gradients_;
  std::deque<Submitted> submitted_;
  int64_t recapture_at_ = kNever;  // from this step of the device on, no earlier capture is replayed
};

}  // namespace muster::engine
