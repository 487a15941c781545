// What ranks settle before a step changes anything: who takes part, whether gradients are finite, and how large they
// are.
//
// On the host the answers are there when the call returns. On a device they stay there, as flags and factors that
// kernels go by, and reach the host when somebody looks.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/program/program.h"
#include "engine/state/device_buffer.h"
#include "engine/step/agreement.h"
#include "engine/step/executor.h"
#include "engine/step/recorder.h"
#include "kernels/async_device.h"
#include "kernels/kernels.h"

namespace muster::engine {

struct Accord {
  std::vector<bool> active;  // parameters that take part
  bool skip = false;
  double clip = 1;
};

class Control {
 public:
  using ProgramOf = std::function<const Program&(const std::vector<bool>& active)>;

  // All references outlive it.
  Control(const Problem& problem, const Holdings& holdings, std::span<const ParameterMemory> memory,
          const std::vector<Group>& groups, kernels::Kernels& kernels, Executor& executor, Recorder& recorder,
          ProgramOf program);

  // On the host. Norms go to the recorder.
  Accord settle(Gradients gradients, const StepOptions& options, int64_t number, Communicator& communicator);

  // The same, enqueued; executor and kernels then go by active() and clip().
  void enqueue(Gradients gradients, const StepOptions& options, int64_t number, const Ballots& ballots,
               const Executor::Link& link);
  // For one of the waves of a step that starts early: the ballots of those up to it.
  struct WaveBallots {
    size_t wave = 0;
    size_t waves = 1;
    std::function<PrintChoice(size_t parameter)> prints;  // whose gradients are compared with this wave
  };
  void enqueue(Gradients gradients, const Ballots& ballots, int64_t number, const WaveBallots& wave_ballots,
               const Executor::Link& link);
  // Adds the fingerprints of this rank's gradients to the words of its ballots, where the kernels compute.
  void add_prints(const StepQuestion& question, Gradients gradients,
                  const std::function<PrintChoice(size_t parameter)>& choose, int64_t* words);
  void end_step(int64_t* updates);  // counts who took part, and sends the answers to the host
  void send();
  // What the calls of a step are like on any rank: one whose own are the same in two kinds of steps must not take one
  // for the other, since all ranks record a step or none.
  std::vector<int64_t> kind(const StepOptions& options, int64_t number) const;
  std::vector<bool> by_schedule(int64_t number) const;  // parameters whose turn it is
  bool on_device() const { return stream_ != nullptr; }
  const int32_t* active() const { return active_; }
  const double* clip() const { return &verdict_->clip; }

  // What a step came to, from what was sent. Throws InvalidArgument as settle() would.
  struct Outcome {
    bool skipped = false;
    double norm = 0;
    double clip = 1;
  };
  Outcome read(std::span<const std::byte> sent, const StepOptions& options, int64_t number) const;
  // Of a step in waves: the first was agreed upon, and there were others.
  static bool begun(std::span<const std::byte> sent);
  // Norms of single parameters after a step with parameter_stats; waits.
  void read_norms(double grad_scale);

  StepQuestion question(int64_t number, const Communicator& communicator, bool recorded = false) const {
    return {problem_, holdings_, memory_, groups_, number, executor_.seed(), communicator.rank(), communicator.size(),
            recorded};
  }

 private:
  bool screen(Gradients gradients, const std::vector<bool>& active, NonFinite policy, int64_t number,
              Communicator& communicator);
  // Squares of gradients that this rank stands for, and of averages of replicas at their owners: kWords words of one
  // sum, or for each parameter, where the kernels compute.
  void add_squares(Gradients gradients, const std::vector<bool>& active, int64_t number, const Executor::Link& link,
                   bool each, int64_t* words);
  void reduce(int64_t* words, size_t count, std::string_view label, const Executor::Link& link);
  bool averaged(size_t p) const { return problem_.grad_sync && holdings_.replicas[p] > 1; }
  kernels::ValueBlock shard(size_t p, const void* data, bool numbered) const {
    return {1,
            holdings_.elements[p],
            data,
            holdings_.elements[p],
            active_ == nullptr ? nullptr : active_ + p,
            numbered ? static_cast<int64_t>(p) : 0};
  }
  // Calls f(dtype, blocks) for the gradients that are there, of either dtype; `each` with its parameter's number, or 0.
  template <typename F>
  void for_gradients(Gradients gradients, const std::vector<bool>& active, bool each, F f) const;

  const Problem& problem_;
  const Holdings& holdings_;
  const std::span<const ParameterMemory> memory_;
  const std::vector<Group>& groups_;
  kernels::Kernels& kernels_;
  kernels::AsyncDevice* const stream_;
  Executor& executor_;
  Recorder& recorder_;
  const ProgramOf program_;
  const BallotLayout layout_;
  const bool has_replicas_to_compare_;  // the same on every rank

  // On the device, in this order; what is before `squares_` is sent to the host.
  DeviceBuffer memory_of_answers_;
  kernels::Verdict* verdict_ = nullptr;
  kernels::Verdict* first_ = nullptr;  // of the first of several waves
  int64_t* words_ = nullptr;           // ballots
  int64_t* bad_ = nullptr;             // not finite, a parameter
  int64_t* squares_ = nullptr;         // kWords a parameter
  int32_t* active_ = nullptr;
};

}  // namespace muster::engine
