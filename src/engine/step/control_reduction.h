// What ranks agree on before a step changes anything: who takes part, whether gradients are finite, and their norm.
//
// On the host a call returns the answers. On a device kernels read them there, and a later call reads them back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "engine/state/device_buffer.h"
#include "engine/step/control_words.h"
#include "engine/step/step_context.h"
#include "engine/step/wave_executor.h"
#include "kernels/async_device.h"
#include "kernels/kernels.h"

namespace muster::engine {

class ControlReduction {
 public:
  // `groups` is their number. References outlive this object.
  ControlReduction(const StepContext& context, WaveExecutor& executor, size_t groups);

  // On the host. Norms go to the timer's statistics. Throws InvalidArgument on every rank if any refuses the step or
  // they disagree.
  struct Decision {
    std::vector<bool> active;  // parameters that take part
    bool skip = false;         // NonFinite::kSkipStep
    double clip = 1;
  };
  Decision agree(const StepRequest& request);

  // On a device: enqueues the same. Executor and kernels then read active() and clip().
  void enqueue(const StepRequest& request, const ControlWords& words);
  // The same for one wave of an overlapped step.
  struct Wave {
    size_t wave = 0;
    size_t waves = 1;
    ChooseParameters compare;  // whose gradients are compared with this wave
  };
  void enqueue(const StepRequest& request, const ControlWords& words, const Wave& wave);
  void end_step();  // counts the updates of parameters that took part, and calls send()
  void send();      // enqueues the copy of the answers to the host

  // Adds the fingerprints of this rank's gradients to its words, which are where the kernels compute.
  void add_fingerprints(const StepRequest& request, const ChooseParameters& choose, int64_t* words);

  // Equal if the calls of two steps are the same on every rank. It is part of a captured step's key: a rank whose own
  // calls are the same in two steps must not replay one for the other, since all ranks capture a step or none does.
  std::vector<int64_t> key(const StepRequest& request) const;

  const int32_t* active() const { return active_; }
  const int32_t* sitting() const { return sitting_; }
  const double* clip() const { return &verdict_->clip; }

  // What a step came to, from the bytes that were sent. Throws InvalidArgument as agree() does.
  struct Outcome {
    bool skipped = false;
    double norm = 0;
    double clip = 1;
  };
  Outcome read(std::span<const std::byte> sent, int64_t step, NonFinite policy) const;
  // True if an overlapped step of several waves has changed weights: ranks agreed on the first.
  static bool began(std::span<const std::byte> sent);
  // Norms of single parameters after a step with parameter_stats; waits for the device.
  void read_norms(double grad_scale);

 private:
  enum class SumPer : uint8_t { kStep, kParameter };

  // True if the policy is to skip the step.
  bool screen(const StepRequest& request, const std::vector<bool>& active);
  // Adds squares of the gradients that this rank stands for, and of averages of replicas at their owners, to one sum or
  // to one per parameter, where the kernels compute.
  void add_squares(const StepRequest& request, const std::vector<bool>& active, int64_t* sums);
  void reduce(int64_t* words, size_t count, std::string_view label);
  // On a device: whether the row factors are finite, and the same on all ranks.
  void add_row_factors(std::span<const float> factors);
  void decide_on_device(kernels::Verdict* verdict);
  bool averaged(size_t p) const { return context_.problem.grad_sync && context_.holdings.replicas[p] > 1; }
  kernels::ValueBlock shard(size_t p, const void* gradient, SumPer sum) const;
  // Calls work(dtype, blocks) for the gradients that are there, once per dtype.
  template <typename Work>
  void for_gradients(Gradients gradients, const std::vector<bool>& active, SumPer sum, Work work) const;

  const StepContext& context_;
  WaveExecutor& executor_;
  const ControlLayout layout_;
  const bool has_replicas_to_compare_;  // the same on every rank

  // On the device, in this order; what is before `squares_` is sent to the host.
  DeviceBuffer answers_;
  kernels::Verdict* verdict_ = nullptr;
  kernels::Verdict* first_verdict_ = nullptr;  // on the first of several waves
  int64_t* words_ = nullptr;
  int64_t* non_finite_ = nullptr;  // one per parameter
  int64_t* squares_ = nullptr;     // SumOfSquares::kWords per parameter
  int32_t* active_ = nullptr;      // one per parameter
  int32_t* sitting_ = nullptr;     // one per parameter
};

}  // namespace muster::engine
