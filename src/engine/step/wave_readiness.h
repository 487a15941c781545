// Which waves of an overlapped step may start: those whose gradients this rank has, and on whose control words all
// ranks agree.
//
// Before a wave changes anything ranks agree as before a whole step, on what is known by then. The last wave waits
// until all ranks have called step(), so that each of them can still refuse.
//
// On a device no rank waits: the answer stays there, and a wave that ranks did not agree on is enqueued and changes
// nothing. So every wave asks about itself and those before it; the last one's answer is the step's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/step/control_reduction.h"
#include "engine/step/status.h"
#include "engine/step/step_context.h"
#include "engine/step/wave_executor.h"
#include "muster/communicator.h"

namespace muster::engine {

// Throws InvalidArgument if an overlapped step cannot do what the options ask for.
void check_overlap(const StepOptions& options);

class WaveReadiness {
 public:
  // References outlive this object. The plan has elementwise parameters in its last wave.
  WaveReadiness(const StepContext& context, ControlReduction& control);

  // Groups of the request stay until the step is over. `own` is why this rank refuses the step already.
  void begin(const StepRequest& request, StepStatus own);
  const StepInput& input() const { return input_; }

  // This rank has a gradient. Throws InvalidArgument, which step() then refuses, too.
  void mark(int32_t parameter, void* gradient);
  // step() was called: no more gradients come. Returns why this rank refuses the step.
  const StepStatus& close(const StepRequest& request);
  bool closed() const { return closed_; }

  // True if ask() may be called: the wave's gradients are here.
  bool ready(size_t wave) const;
  // Sends this rank's control words.
  void ask(size_t wave);
  // True if agree() would not wait.
  bool answered() { return asked_ == nullptr || asked_->test(); }
  // On the host. Throws InvalidArgument on every rank if any refuses the step.
  void agree(size_t wave);
  void drop() { asked_.reset(); }

  // On the host: the parameter took part.
  bool took_part(size_t parameter) const { return active_[parameter] != 0; }

 private:
  bool on_device() const { return context_.device != nullptr; }
  // Its first wave is after `wave`, so other ranks may not have its gradient yet.
  bool later(size_t parameter, size_t wave) const { return waves_of_[parameter][0] > wave; }
  Compare compare(size_t parameter, size_t wave) const;
  StepStatus status_of(const StepRequest& request) const;
  const std::string& name(size_t parameter) const { return context_.problem.parameters[parameter].name; }

  const StepContext& context_;
  ControlReduction& control_;
  const std::vector<std::vector<size_t>> waves_of_;  // per parameter, ascending

  StepRequest request_;  // with gradients_
  StepInput input_;
  std::vector<void*> gradients_;  // null: not here yet, or absent
  std::vector<bool> due_;         // per parameter: its group takes part
  std::vector<bool> ready_;       // per parameter: mark() was called
  std::vector<size_t> missing_;   // per wave: gradients of this rank that are not here
  std::vector<int32_t> active_;   // per parameter: it takes part, as far as ranks have agreed
  bool may_start_early_ = true;
  bool closed_ = false;
  bool settled_ = false;  // all ranks had called step() when they agreed
  ControlWords words_;
  StepStatus own_;  // kRefused: this rank refuses the step
  std::unique_ptr<Request> asked_;
};

}  // namespace muster::engine
