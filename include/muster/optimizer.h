/// \file
/// The optimizer: one object per rank. Its constructor plans; every step carries out the plan.
///
///     muster::Optimizer optimizer(problem, options, communicator, memory);
///     for (...) {
///       optimizer.group(0).lr = schedule(step);
///       optimizer.step(gradients);
///     }
///
/// Calls are collective unless their comment says otherwise: every rank of the communicator makes them, in the same
/// order. The same gradients give the same bits for every layout, strategy, and number of ranks, waves and threads.
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
#include "muster/rule.h"

namespace muster {

/// The memory of one parameter on one rank. The caller owns it; it outlives the optimizer.
struct ParameterMemory {
  /// This rank's shard, contiguous, in the order of its local storage, updated in place. Null if this rank holds
  /// nothing of the parameter.
  void* weight = nullptr;
  /// The second piece of memory that the form asks for, of the same shape. Among replicas it may be up to date only on
  /// the one that updates an element.
  void* extra = nullptr;
  WeightForm form = WeightForm::kF32;  ///< how the weight is stored; its dtype is Parameter::dtype
  int32_t group = 0;                   ///< index into OptimizerOptions::groups
  /// With StateKeeper::kHolders: this rank's momentum (Muon and NorMuon: in OptimizerOptions::momentum) or first
  /// moments (AdamW and Lion: f32), contiguous, in the shape of the shard, on the device of the weights. The engine
  /// starts from the values that it finds there. Null if this rank holds nothing of the parameter.
  void* momentum = nullptr;
  /// With StateKeeper::kHolders, the same for AdamW's second moments: f32, in the shape of the shard.
  void* second = nullptr;
  /// With StateKeeper::kHolders, the same for NorMuon's mean squares: f32, of StatisticsLayout::local_shape.
  void* statistics = nullptr;
};

/// The device that holds weights, gradients and state, and that the rank computes on.
struct Device {
  /// The kinds of device.
  enum class Kind : uint8_t {
    kCpu,   ///< this process's cores
    kCuda,  ///< a GPU
  };
  Kind kind = Kind::kCpu;  ///< where weights, gradients and state are
  int index = 0;           ///< kCuda: the device's number in this process
  /// The caller's cudaStream_t (0: the default stream). A step reads gradients after the work enqueued there before it,
  /// and work enqueued there later sees the new weights. None: the caller orders the work, with synchronize().
  std::optional<void*> stream{};
};
/// True if CUDA was built in and a device was found.
bool cuda_available();

/// Rows of a parameter that steps multiply by factors (StepOptions::row_factors). A row is a line along the last
/// dimension, so a parameter of shape (4, 3, 10) has 12; in a vector, each element is a row.
struct RowScaling {
  int32_t parameter = 0;                 ///< index into Problem::parameters
  std::vector<int32_t> factor_of_row{};  ///< per row, an index into StepOptions::row_factors; -1: always 1
};

/// Options that are fixed at construction. Every rank gives the same; only counters, updates, device and threads are
/// its own.
struct OptimizerOptions {
  /// How the plan is made; by default with the cost table of a CPU. \hideinitializer
  PlanOptions plan{.cost = CostTable::cpu()};
  std::vector<Group> groups{Group{}};  ///< hyperparameters as they start; Optimizer::group() changes them
  /// One per group: the rule of its parameters with Algorithm::kRule. Null, or fewer than groups: the group has none.
  std::vector<std::shared_ptr<Rule>> rules{};
  Dtype momentum = Dtype::kF32;  ///< type of Muon's and NorMuon's momentum: f32 or bf16
  int threads = 1;               ///< CPU threads of this rank
  uint64_t seed = 0;             ///< seed of stochastic rounding
  /// {steps done, seed}, on the host, owned by the caller. The engine starts from these values and counts in place.
  /// Null: the engine has its own, which start at zero.
  int64_t* counters = nullptr;
  /// Updates done, one per parameter, on the device, owned by the caller. Null: the engine has its own, which start at
  /// zero.
  int64_t* updates = nullptr;
  Device device{};  ///< that holds weights, gradients and state
  /// Waves may start before step(), as gradients come: see begin_step() and ready(). PlanOptions::order says in which
  /// order they come; AdamW and Lion go last. Not with options that need all gradients first: clipping, norms, a policy
  /// for non-finite gradients, a scale of the gradients, parameter_stats.
  bool overlap = false;
  /// Which rows steps multiply by which factors; each parameter at most once.
  std::vector<RowScaling> row_scaling{};
  bool graph = true;  ///< on a device: capture a step once as a graph and replay it; set false when debugging
};

/// What to do about NaN and infinity in gradients. All but kIgnore check every gradient before anything is changed.
enum class NonFinite : uint8_t {
  kIgnore,    ///< do not look
  kError,     ///< throw InvalidArgument that names the first such parameter
  kSkipStep,  ///< only count the step
  kZero,      ///< replace them by 0 in the caller's gradients
};

/// Options of one step. Every rank gives the same.
struct StepOptions {
  double grad_scale = 1;  ///< multiplies every gradient first: 1 / the scale of the loss
  /// Clipping multiplies gradients by min(1, max_grad_norm / (norm + 1e-6)), or by 1 if that is NaN. 0: no clipping.
  double max_grad_norm = 0;
  NonFinite non_finite = NonFinite::kIgnore;  ///< the policy for NaN and infinity
  bool grad_norm = false;                     ///< report the norm also without clipping
  /// Compute ParameterStats for every parameter. Such a step costs one more Gram product per matrix, five passes over
  /// the weights and 16 MiB. On a device it waits for the end of the step, and does not replay a graph.
  bool parameter_stats = false;
  /// Factors of the rows that OptimizerOptions::row_scaling names, each finite and above 0; the same on every rank.
  /// Empty: none. A row is multiplied after its update and before its weights are rounded, also if its parameter sits
  /// the step out; state keeps its values. A skipped step scales nothing. On a device they are read there when the step
  /// runs, NaN and infinity refuse it, and other values need no new capture. Of an overlapped step: options of
  /// begin_step().
  std::span<const float> row_factors{};
  bool trace = false;  ///< keep the TraceEvents of the step. With graphs: on all ranks or on none
};

/// The parts that the time of a step is divided into.
enum class Stage : uint8_t {
  kControl,        ///< the ranks agree on gradients, hyperparameters and norms
  kPack,           ///< momentum; updates or gradients into messages
  kWaitIn,         ///< waiting for the messages of other ranks
  kAssemble,       ///< messages into matrices; sums over replicas
  kOrthogonalize,  ///< Newton-Schulz on whole matrices
  kNormalize,      ///< NorMuon
  kElementwise,    ///< AdamW and Lion
  kStage,          ///< updates and weights into messages
  kWaitOut,        ///< waiting for the messages of owners
  kApply,          ///< updates to the weights
};
/// How many stages there are.
inline constexpr int kStages = 10;
/// The name of a stage, for reports.
std::string_view name(Stage stage);

/// Statistics of one parameter in one step; the same on every rank.
struct ParameterStats {
  double grad_norm = 0;   ///< norm of the whole gradient, before clipping
  double update_rms = 0;  ///< RMS of the change of its weights, decay included
  double weight_rms = 0;  ///< RMS of its weights after the step
  /// Muon and NorMuon: RMS of sigma^2 - 1 over the singular values of its orthogonalized updates, before NorMuon scales
  /// them. 0: orthogonal, or the parameter sat the step out; 1: the updates are zero.
  double orthogonality_error = 0;

  /// Compares all fields.
  bool operator==(const ParameterStats&) const = default;
};

/// What one rank did in a step.
struct StepStats {
  int64_t step = 0;      ///< its number, from 1
  bool skipped = false;  ///< non-finite gradients under NonFinite::kSkipStep
  double grad_norm = 0;  ///< over all parameters that take part, before clipping; 0 if not asked for, or skipped
  double clip = 1;       ///< the factor of the gradients that clipping chose
  int64_t total_ns = 0;  ///< nanoseconds from call to return
  /// Nanoseconds per stage; total_ns is larger by the time between stages. On a device this is host time, and 0 for
  /// calls that a replayed step did not make.
  std::array<int64_t, kStages> stage_ns{};
  int64_t exchanges = 0;                     ///< those in which this rank sent or received a message
  int64_t messages_sent = 0;                 ///< by this rank
  int64_t bytes_sent = 0;                    ///< by this rank, to others
  int64_t bytes_received = 0;                ///< by this rank, from others
  int64_t kernels = 0;                       ///< calls of kernels; on a device, launches
  bool replayed = false;                     ///< on a device: the step replayed a graph
  int64_t early_waves = 0;                   ///< waves that started before step() was called
  std::vector<ParameterStats> parameters{};  ///< empty unless asked for; zeros if the step was skipped

  /// Nanoseconds of one stage.
  int64_t at(Stage stage) const { return stage_ns[static_cast<size_t>(stage)]; }
};

/// A span of time on one rank. An exchange lasts from its start until this rank has seen its end.
struct TraceEvent {
  std::string name;       ///< what was done
  bool exchange = false;  ///< true: communication; false: computation
  int32_t wave = -1;      ///< -1: of no wave
  int64_t begin_ns = 0;   ///< nanoseconds of std::chrono::steady_clock
  int64_t end_ns = 0;     ///< nanoseconds of std::chrono::steady_clock
  int64_t bytes = 0;      ///< sent and received by this rank
};

/// Types of exported tensors.
enum class StateType : uint8_t {
  kF32,   ///< 32-bit float
  kBf16,  ///< bfloat16
  kU16,   ///< the low halves of f32 weights (WeightForm::kBf16Mantissa)
  kI64,   ///< counters
};
/// Bytes per element.
int64_t byte_size(StateType type);

/// A tensor of weights or state, described as a whole: the same on every rank and for every layout.
struct StateInfo {
  /// "blocks.0.mlp:momentum", :variance, :first, :second, :weight, :master, :mantissa, :updates
  std::string name;
  StateType type = StateType::kF32;  ///< type of the elements
  Shape shape;                       ///< shape of the whole tensor
};
/// The same with its elements.
struct StateTensor : StateInfo {
  std::vector<std::byte> data;  ///< row-major
};

/// The optimizer of one rank. One thread at a time uses it. After an error that may have left weights partly updated it
/// is broken: step(), save() and export_state() throw CommError until load(), import_state() or restored().
class Optimizer {
 public:
  /// Plans and allocates. memory[p] is the memory of problem.parameters[p]. The communicator and the memory outlive the
  /// optimizer. Throws InvalidArgument on every rank, naming the parameter, if an argument is wrong on any rank, if the
  /// ranks' arguments differ, or if replicas start from different weights (ErrorCode::kReplicaWeightsDiffer).
  Optimizer(Problem problem, OptimizerOptions options, Communicator& communicator, std::vector<ParameterMemory> memory);
  /// Waits for the steps that are enqueued on a device. If a step has begun and not ended, it aborts the communicator.
  /// Not collective.
  ~Optimizer();
  /// Moves the engine; references to groups and statistics stay valid. Not collective.
  Optimizer(Optimizer&&) noexcept;
  /// Replaces this engine by another. Not collective.
  Optimizer& operator=(Optimizer&&) noexcept;

  /// As given to the constructor. Not collective.
  const Problem& problem() const;
  /// The plan; equal on all ranks. Not collective.
  const Plan& plan() const;
  /// Bytes allocated on this rank besides weights, gradients and state. Not collective.
  int64_t scratch_bytes() const;
  /// How many groups there are. Not collective.
  int32_t groups() const;
  /// The hyperparameters of a group, read by every step: change them between steps, on all ranks alike. Not collective.
  /// Throws InvalidArgument for an index out of range.
  Group& group(int32_t index);
  /// Steps done, skipped ones included. Not collective.
  int64_t steps() const;

  /// Makes one step. gradients[p] is this rank's shard of the gradient of parameter p, laid out as the weights are;
  /// null if there is none. A parameter that has no gradient on any rank sits the step out; if only some shards have
  /// none, theirs count as zero. The caller owns the gradients. The result is valid until the next step.
  ///
  /// Bad input throws InvalidArgument on every rank and changes nothing. After any other error weights may be partly
  /// updated: step(), save() and export_state() then throw CommError until load() or import_state() has restored
  /// everything, or the caller has and calls restored().
  ///
  /// On a device step() returns when its work is enqueued; the gradients must stay as they are until that work is done.
  /// It throws at once if this rank's arguments are wrong. If another rank refused the step or died, a later step()
  /// throws, at most two steps later, or synchronize(). A refused step changes nothing but is counted, unless the rank
  /// is alone. If step() reports an earlier step's refusal, the current step has still been enqueued. With norms,
  /// parameter_stats, a trace or NonFinite::kError, step() waits for the end of its work.
  const StepStats& step(std::span<void* const> gradients, const StepOptions& options = {});
  /// Begins a step before its gradients are there, with OptimizerOptions::overlap; step() ends it. Hyperparameters must
  /// not change before step() returns. Not collective; step() begins a step that this rank has not begun. On a device
  /// it first waits for the end of the previous step. Throws InvalidArgument, with nothing changed, for options that
  /// overlap excludes.
  void begin_step(const StepOptions& options = {});
  /// Gives a gradient to the step that has begun. The gradient must stay as it is, where it is, until step() returns.
  /// Each is given at most once per step, in any order; step() is then given all gradients, these included. A wave
  /// starts in its turn once all its gradients are given, so weights may change from now on. Not collective, and never
  /// waits for another rank. Null gives nothing, but lets the waves that have started go on. Throws InvalidArgument for
  /// a gradient that is given twice; refusals of other ranks are thrown by step().
  ///
  /// On a device the gradient is read after the work enqueued so far on Device::stream; follow() changes that stream.
  /// The wave runs on other streams, and step() makes Device::stream wait for all waves. If a rank refuses the step
  /// after a wave has begun, weights may be partly updated; ranks that learn of it later throw from synchronize() or
  /// their next call.
  void ready(int32_t parameter, void* gradient);
  /// The norm of all gradients that step() would clip by; the same bits on every rank. Throws as step() does, and
  /// changes nothing.
  double grad_norm(std::span<void* const> gradients, double grad_scale = 1);

  /// Waits for the steps enqueued on a device, and throws if one of them failed or was refused. Not collective.
  void synchronize();
  /// Replaces Device::stream from the next call on. Not collective.
  void follow(void* stream);
  /// The caller has moved this rank's shard of a parameter, and its `extra`, to these addresses, with their values. Not
  /// collective. Throws InvalidArgument, with nothing changed.
  void move(int32_t parameter, void* weight, void* extra = nullptr);
  /// Addresses of state that holders keep (StateKeeper::kHolders); null: that address has not changed.
  struct StateMemory {
    void* momentum = nullptr;    ///< as ParameterMemory::momentum
    void* second = nullptr;      ///< as ParameterMemory::second
    void* statistics = nullptr;  ///< as ParameterMemory::statistics
  };
  /// The caller has moved its state of a parameter to these addresses, with its values. Not collective. Throws
  /// InvalidArgument, with nothing changed.
  void move_state(int32_t parameter, const StateMemory& state);

  /// Statistics of the last step that was not refused, of this rank. Not collective.
  const StepStats& last_step() const;
  /// Events of the last step on this rank; empty unless StepOptions::trace asked for them. Not collective.
  const std::vector<TraceEvent>& trace() const;

  /// The weights and state as whole tensors: names, shapes and values are the same for every layout. Not collective.
  std::vector<StateInfo> state() const;
  /// Gathers one of them by its name; every rank gets the whole tensor. Throws InvalidArgument for an unknown name.
  StateTensor export_state(const std::string& name);
  /// Replaces some of them. Every rank gives the same tensors, each name once. Throws InvalidArgument on every rank,
  /// with nothing changed. Giving all of state() ends a failure: step() works again.
  void import_state(std::span<const StateTensor> tensors);

  /// The caller has restored weights and all state in its own memory: step() works again after a failure. Not
  /// collective; the next step throws InvalidArgument, naming the ranks, if ranks restored different numbers of steps.
  void restored();

  /// Writes a checkpoint, which is a directory on a file system that all ranks share. A checkpoint that is there is
  /// replaced when the new one is complete: if save() is interrupted, one of the two can still be loaded. Throws on
  /// every rank, naming the rank that could not write: ResourceError if its disk is full or failed, InvalidArgument if
  /// the directory is wrong. The old checkpoint is as it was.
  void save(const std::string& directory);
  /// Loads a checkpoint that was saved with any layout and number of ranks. A damaged or unsuitable checkpoint throws
  /// InvalidArgument that names what is wrong, with nothing changed. After any other error weights may be partly
  /// updated, and step() throws until everything has been restored, as after a failed step().
  void load(const std::string& directory);

  /// After a CommError: continues with another communicator of the same rank and size, which outlives the optimizer. If
  /// a step broke off on any rank, all ranks must then load a state before the next step. Throws InvalidArgument.
  void reconnect(Communicator& communicator);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster
