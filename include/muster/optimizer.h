// The optimizer: one object per rank. Its constructor plans; every step carries out the plan.
//
//   muster::Optimizer optimizer(problem, options, communicator, memory);
//   for (...) {
//     optimizer.group(0).lr = schedule(step);
//     optimizer.step(gradients);
//   }
//
// Calls are collective unless their comment says otherwise: every rank of the communicator makes them, in the same
// order. The same gradients give the same bits for every layout, strategy, and number of ranks, waves and threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "muster/communicator.h"
#include "muster/group.h"
#include "muster/plan.h"

namespace muster {

// The memory of one parameter on one rank. The caller owns it; it outlives the optimizer.
struct ParameterMemory {
  // This rank's shard, contiguous, in the order of its local storage, updated in place. Null if this rank holds nothing
  // of the parameter.
  void* weight = nullptr;
  // The second piece of memory that the form asks for, of the same shape. Among replicas it may be up to date only on
  // the one that updates an element.
  void* extra = nullptr;
  WeightForm form = WeightForm::kF32;
  int32_t group = 0;  // index into OptimizerOptions::groups
  // With StateKeeper::kHolders: this rank's state, contiguous, on the device of the weights. The engine starts from the
  // values that it finds there. Null if the parameter has no such state, or this rank holds nothing of it.
  // The first two have the shape of the shard.
  void* momentum = nullptr;    // Muon and NorMuon, in OptimizerOptions::momentum; AdamW and Lion: f32, first moments
  void* second = nullptr;      // AdamW: f32, second moments
  void* statistics = nullptr;  // NorMuon: f32, of StatisticsLayout::local_shape
};

// The device that holds weights, gradients and state, and that the rank computes on.
struct Device {
  enum class Kind : uint8_t { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  int index = 0;
  // The caller's cudaStream_t (0: the default stream). A step reads gradients after the work enqueued there before it,
  // and work enqueued there later sees the new weights. None: the caller orders the work, with synchronize().
  std::optional<void*> stream{};
};
bool cuda_available();  // true if CUDA was built in and a device was found

// Options that are fixed at construction. Every rank gives the same; only counters, updates, device and threads are its
// own.
struct OptimizerOptions {
  PlanOptions plan{.cost = CostTable::cpu()};
  std::vector<Group> groups{Group{}};
  Dtype momentum = Dtype::kF32;  // f32 or bf16
  int threads = 1;
  uint64_t seed = 0;  // of stochastic rounding
  // Counters that the caller owns. The engine starts from their values and counts in place. Null: the engine has its
  // own, which start at zero.
  int64_t* counters = nullptr;  // {steps done, seed}, on the host
  int64_t* updates = nullptr;   // updates done, one per parameter, on the device
  Device device{};
  // Waves may start before step(), as gradients come: see begin_step() and ready(). PlanOptions::order says in which
  // order they come; AdamW and Lion go last. Not with options that need all gradients first: clipping, norms, a policy
  // for non-finite gradients, a scale of the gradients, parameter_stats.
  bool overlap = false;
  bool graph = true;  // on a device: capture a step once as a graph and replay it; set false when debugging
};

// What to do about NaN and infinity in gradients. All but kIgnore check every gradient before anything is changed.
enum class NonFinite : uint8_t {
  kIgnore,
  kError,     // throw InvalidArgument that names the first such parameter
  kSkipStep,  // only count the step
  kZero,      // replace them by 0 in the caller's gradients
};

// Options of one step. Every rank gives the same.
struct StepOptions {
  double grad_scale = 1;  // multiplies every gradient first: 1 / the scale of the loss
  // Clipping multiplies gradients by min(1, max_grad_norm / (norm + 1e-6)), or by 1 if that is NaN. 0: no clipping.
  double max_grad_norm = 0;
  NonFinite non_finite = NonFinite::kIgnore;
  bool grad_norm = false;  // report the norm also without clipping
  // Compute ParameterStats for every parameter. Such a step costs one more Gram product per matrix, five passes over
  // the weights and 16 MiB. On a device it waits for the end of the step, and does not replay a graph.
  bool parameter_stats = false;
  bool trace = false;  // keep the TraceEvents of the step. With graphs: on all ranks or on none
};

// The parts that the time of a step is divided into.
enum class Stage : uint8_t {
  kControl,   // the ranks agree on gradients, hyperparameters and norms
  kPack,      // momentum; updates or gradients into messages
  kWaitIn,    // waiting for the messages of other ranks
  kAssemble,  // messages into matrices; sums over replicas
  kOrthogonalize,
  kNormalize,    // NorMuon
  kElementwise,  // AdamW and Lion
  kStage,        // updates and weights into messages
  kWaitOut,      // waiting for the messages of owners
  kApply,        // updates to the weights
};
inline constexpr int kStages = 10;
std::string_view name(Stage stage);

// Statistics of one parameter in one step; the same on every rank.
struct ParameterStats {
  double grad_norm = 0;   // of the whole parameter, before clipping
  double update_rms = 0;  // RMS of the change of its weights, decay included
  double weight_rms = 0;  // RMS of its weights after the step
  // Muon and NorMuon: RMS of sigma^2 - 1 over the singular values of its orthogonalized updates, before NorMuon scales
  // them. 0: orthogonal, or the parameter sat the step out; 1: the updates are zero.
  double orthogonality_error = 0;

  bool operator==(const ParameterStats&) const = default;
};

// What one rank did in a step.
struct StepStats {
  int64_t step = 0;
  bool skipped = false;  // non-finite gradients under NonFinite::kSkipStep
  double grad_norm = 0;  // over all parameters that take part, before clipping; 0 if not asked for, or skipped
  double clip = 1;       // the factor of the gradients that clipping chose
  int64_t total_ns = 0;
  // Time per stage; total_ns is larger by the time between stages. On a device this is host time, and 0 for calls that
  // a replayed step did not make.
  std::array<int64_t, kStages> stage_ns{};
  int64_t exchanges = 0;  // those in which this rank sent or received a message
  int64_t messages_sent = 0;
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  int64_t kernels = 0;                       // calls of kernels; on a device, launches
  bool replayed = false;                     // on a device: the step replayed a graph
  int64_t early_waves = 0;                   // waves that started before step() was called
  std::vector<ParameterStats> parameters{};  // empty unless asked for; zeros if the step was skipped

  int64_t at(Stage stage) const { return stage_ns[static_cast<size_t>(stage)]; }
};

// A span of time on one rank. An exchange lasts from its start until this rank has seen its end.
struct TraceEvent {
  std::string name;
  bool exchange = false;
  int32_t wave = -1;     // -1: of no wave
  int64_t begin_ns = 0;  // std::chrono::steady_clock
  int64_t end_ns = 0;
  int64_t bytes = 0;  // sent and received by this rank
};

enum class StateType : uint8_t { kF32, kBf16, kU16, kI64 };
int64_t byte_size(StateType type);

// A tensor of weights or state, described as a whole: the same on every rank and for every layout.
struct StateInfo {
  std::string name;  // "blocks.0.mlp:momentum", :variance, :first, :second, :weight, :master, :mantissa, :updates
  StateType type = StateType::kF32;
  Shape shape;
};
// The same with its elements.
struct StateTensor : StateInfo {
  std::vector<std::byte> data;  // row-major
};

class Optimizer {
 public:
  // memory[p] is the memory of problem.parameters[p]. The communicator and the memory outlive the optimizer. Throws
  // InvalidArgument on every rank, naming the parameter, if an argument is wrong on any rank, if the ranks' arguments
  // differ, or if replicas start from different weights (ErrorCode::kReplicaWeightsDiffer).
  Optimizer(Problem problem, OptimizerOptions options, Communicator& communicator, std::vector<ParameterMemory> memory);
  ~Optimizer();
  Optimizer(Optimizer&&) noexcept;
  Optimizer& operator=(Optimizer&&) noexcept;

  // The functions from here to steps() are not collective.
  const Problem& problem() const;
  const Plan& plan() const;
  int64_t scratch_bytes() const;  // allocated on this rank besides weights, gradients and state
  int32_t groups() const;
  Group& group(int32_t index);  // read by every step; throws InvalidArgument for an index out of range
  int64_t steps() const;        // steps done, skipped ones included

  // Makes one step. gradients[p] is this rank's shard of the gradient of parameter p, laid out as the weights are; null
  // if there is none. A parameter that has no gradient on any rank sits the step out; if only some shards have none,
  // theirs count as zero. The caller owns the gradients. The result is valid until the next step.
  //
  // Bad input throws InvalidArgument on every rank and changes nothing. After any other error weights may be partly
  // updated: step(), save() and export_state() then throw CommError until load() or import_state() has restored
  // everything, or the caller has and calls restored().
  //
  // On a device step() returns when its work is enqueued; the gradients must stay as they are until that work is done.
  // It throws at once if this rank's arguments are wrong. If another rank refused the step or died, a later step()
  // throws, at most two steps later, or synchronize(). A refused step changes nothing but is counted, unless the rank
  // is alone. If step() reports an earlier step's refusal, the current step has still been enqueued. With norms,
  // parameter_stats, a trace or NonFinite::kError, step() waits for the end of its work.
  const StepStats& step(std::span<void* const> gradients, const StepOptions& options = {});
  // Begins a step before its gradients are there, with OptimizerOptions::overlap; step() ends it. Hyperparameters must
  // not change before step() returns. Not collective; step() begins a step that this rank has not begun. On a device it
  // first waits for the end of the previous step. Throws InvalidArgument, with nothing changed, for options that
  // overlap excludes.
  void begin_step(const StepOptions& options = {});
  // Gives a gradient to the step that has begun. The gradient must stay as it is, where it is, until step() returns.
  // Each is given at most once per step, in any order; step() is then given all gradients, these included. A wave
  // starts in its turn once all its gradients are given, so weights may change from now on. Not collective, and never
  // waits for another rank. Null gives nothing, but lets the waves that have started go on. Throws InvalidArgument for
  // a gradient that is given twice; refusals of other ranks are thrown by step().
  //
  // On a device the gradient is read after the work enqueued so far on Device::stream; follow() changes that stream.
  // The wave runs on other streams, and step() makes Device::stream wait for all waves. If a rank refuses the step
  // after a wave has begun, weights may be partly updated; ranks that learn of it later throw from synchronize() or
  // their next call.
  void ready(int32_t parameter, void* gradient);
  // The norm of all gradients that step() would clip by; the same bits on every rank. Throws as step() does, and
  // changes nothing.
  double grad_norm(std::span<void* const> gradients, double grad_scale = 1);

  // Waits for the steps enqueued on a device, and throws if one of them failed or was refused. Not collective.
  void synchronize();
  // Replaces Device::stream from the next call on. Not collective.
  void follow(void* stream);
  // The caller has moved this rank's shard of a parameter, and its `extra`, to these addresses, with their values. Not
  // collective. Throws InvalidArgument, with nothing changed.
  void move(int32_t parameter, void* weight, void* extra = nullptr);
  // The same for state that holders keep; null: that address has not changed.
  struct StateMemory {
    void* momentum = nullptr;
    void* second = nullptr;
    void* statistics = nullptr;
  };
  void move_state(int32_t parameter, const StateMemory& state);

  // The functions from here to state() are not collective.
  const StepStats& last_step() const;            // of the last step that was not refused
  const std::vector<TraceEvent>& trace() const;  // of the last step; empty unless StepOptions::trace asked for it

  // The weights and state as whole tensors: names, shapes and values are the same for every layout.
  std::vector<StateInfo> state() const;
  // Gathers one of them by its name; every rank gets the whole tensor. Throws InvalidArgument for an unknown name.
  StateTensor export_state(const std::string& name);
  // Replaces some of them. Every rank gives the same tensors, each name once. Throws InvalidArgument on every rank,
  // with nothing changed. Giving all of state() ends a failure: step() works again.
  void import_state(std::span<const StateTensor> tensors);

  // The caller has restored weights and all state in its own memory: step() works again after a failure. Not
  // collective; the next step throws InvalidArgument, naming the ranks, if ranks restored different numbers of steps.
  void restored();

  // Writes a checkpoint: a directory on a file system that all ranks share. One that is there is replaced when the new
  // one is complete: if save() is interrupted, one of the two can be loaded. A full disk throws ResourceError on all.
  void save(const std::string& directory);
  // Loads a checkpoint that was saved with any layout and number of ranks. A damaged or unsuitable checkpoint throws
  // InvalidArgument that names what is wrong, with nothing changed. After any other error weights may be partly
  // updated, and step() throws until everything has been restored, as after a failed step().
  void load(const std::string& directory);

  // After a CommError: continues with another communicator of the same rank and size, which outlives the optimizer. If
  // a step broke off on any rank, all ranks must then load a state before the next step. Throws InvalidArgument.
  void reconnect(Communicator& communicator);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster
