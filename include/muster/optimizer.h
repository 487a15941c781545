// The optimizer: one object a rank. It plans at construction and carries the plan out at every step.
//
//   muster::Optimizer optimizer(problem, options, communicator, memory);
//   for (...) {
//     optimizer.group(0).lr = schedule(step);
//     optimizer.step(gradients);
//   }
//
// Every rank of the communicator makes the same calls. The same gradients give the same bits, whatever the layout, the
// strategy, and the numbers of ranks, waves and threads.
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

// This rank's shard of a parameter, contiguous, in the order of its local storage. Null where it holds nothing.
struct ParameterMemory {
  void* weight = nullptr;
  void* extra = nullptr;  // as the form says. Of replicas, only the one that updates an element may keep it up to date
  WeightForm form = WeightForm::kF32;
  int32_t group = 0;  // which of the groups it follows
  // With StateKeeper::kHolders: this rank's state, contiguous, on the device of the weights. The engine reads what it
  // finds there. Null where the parameter has no such state, or this rank holds nothing of it.
  void* momentum = nullptr;    // Muon and NorMuon, in OptimizerOptions::momentum; AdamW and Lion: f32, first moments
  void* second = nullptr;      // AdamW: f32, second moments. Both have the shape of the shard
  void* statistics = nullptr;  // NorMuon: f32, the local part of statistics_layout()
};

// Where weights, gradients and state are, and where a rank computes.
struct Device {
  enum class Kind : uint8_t { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  int index = 0;
  // The caller's cudaStream_t (0: the default one): a step takes gradients as they are when what is enqueued there is
  // done, and leaves new weights to what is enqueued next. None: the caller sees to the order, with synchronize().
  std::optional<void*> stream{};
};
bool cuda_available();  // built in, and there is a device

struct OptimizerOptions {
  PlanOptions plan{.cost = CostTable::cpu()};
  std::vector<Group> groups{Group{}};
  Dtype momentum = Dtype::kF32;  // f32 or bf16
  int threads = 1;
  uint64_t seed = 0;  // of stochastic rounding
  // The caller's counters: {steps done, seed} on the host, and the updates done per parameter, on the device. The
  // engine starts from their values and counts there. Null: the engine has its own, which start at zero.
  int64_t* counters = nullptr;
  int64_t* updates = nullptr;
  Device device{};
  // Waves may start before step(), as gradients come: begin_step() and ready(). The plan's `order` says how they come,
  // and AdamW and Lion go last. Without what needs all gradients first: clipping, norms, policies for non-finite ones,
  // a scale of the gradients.
  bool overlap = false;
  bool graph = true;  // on a device: record a step once and replay it; false: for whoever looks for an error
};

// What to do about NaN and infinity in gradients. All but the first look at every gradient before anything is changed.
enum class NonFinite : uint8_t {
  kIgnore,
  kError,     // throw InvalidArgument naming the first such parameter
  kSkipStep,  // change nothing but the number of the step
  kZero,      // write 0 over them, in the caller's gradients
};

struct StepOptions {
  double grad_scale = 1;     // multiplies every gradient first: 1 / the scale of the loss
  double max_grad_norm = 0;  // clip to it: gradients times min(1, max / (norm + 1e-6)); 1 if that is NaN. 0: not at all
  NonFinite non_finite = NonFinite::kIgnore;
  bool grad_norm = false;  // report it, also where nothing is clipped
  // ParameterStats for every parameter. Such a step costs one more Gram product per matrix (on the CPU and on a
  // device), five passes over the weights and 16 MiB; a device waits for its end and does not replay a captured step.
  bool parameter_stats = false;
  bool trace = false;  // keep what happened when; where steps are recorded, on all ranks or on none
};

// Where the time of a step goes.
enum class Stage : uint8_t {
  kControl,   // agreeing on presence, hyperparameters and norms
  kPack,      // momentum, and updates or gradients into messages
  kWaitIn,    // for what other ranks send
  kAssemble,  // messages to matrices, sums over replicas
  kOrthogonalize,
  kNormalize,    // NorMuon
  kElementwise,  // AdamW and Lion
  kStage,        // updates and weights into messages
  kWaitOut,
  kApply,  // to the weights
};
inline constexpr int kStages = 10;
std::string_view name(Stage stage);

struct ParameterStats {
  double grad_norm = 0;   // of the whole parameter, before clipping
  double update_rms = 0;  // of what was added to its weights, decay included
  double weight_rms = 0;  // of its weights after the step
  // Muon and NorMuon: RMS of sigma^2 - 1 over the singular values of its orthogonalized updates, before NorMuon scales
  // them. 0: orthogonal, or sat out; 1: zero updates.
  double orthogonality_error = 0;

  bool operator==(const ParameterStats&) const = default;
};

// What one rank did in a step.
struct StepStats {
  int64_t step = 0;
  bool skipped = false;  // non-finite gradients under NonFinite::kSkipStep
  double grad_norm = 0;  // over all parameters that take part, before clipping; 0 if not asked for, or skipped
  double clip = 1;       // what gradients were multiplied with for it
  int64_t total_ns = 0;
  // What remains of total_ns is the executor's own. On a device, the host's time: 0 for calls that were not made again.
  std::array<int64_t, kStages> stage_ns{};
  int64_t exchanges = 0;  // in which this rank sent or received anything
  int64_t messages_sent = 0;
  int64_t bytes_sent = 0;
  int64_t bytes_received = 0;
  int64_t kernels = 0;                       // calls; on a device, launches
  bool replayed = false;                     // on a device: recorded before, and started all at once
  int64_t early_waves = 0;                   // begun before step() was called
  std::vector<ParameterStats> parameters{};  // on request; zeros if the step was skipped

  int64_t at(Stage stage) const { return stage_ns[static_cast<size_t>(stage)]; }
};

// A span of time on one rank. Exchanges last from their start until this rank has seen their end.
struct TraceEvent {
  std::string name;
  bool exchange = false;
  int32_t wave = -1;
  int64_t begin_ns = 0;  // of the steady clock
  int64_t end_ns = 0;
  int64_t bytes = 0;
};

enum class StateType : uint8_t { kF32, kBf16, kU16, kI64 };
int64_t byte_size(StateType type);

// Something that is carried from step to step, unsharded.
struct StateInfo {
  std::string name;  // "blocks.0.mlp:momentum", :variance, :first, :second, :weight, :master, :mantissa, :updates
  StateType type = StateType::kF32;
  Shape shape;
};
struct StateTensor : StateInfo {
  std::vector<std::byte> data;  // row-major
};

class Optimizer {
 public:
  // memory[p] is where parameter p of the problem is. The communicator and the memory outlive the optimizer. Throws
  // InvalidArgument on every rank, naming the parameter, if something is wrong on any of them, if they do not agree, or
  // if replicas start from different weights.
  Optimizer(Problem problem, OptimizerOptions options, Communicator& communicator, std::vector<ParameterMemory> memory);
  ~Optimizer();
  Optimizer(Optimizer&&) noexcept;
  Optimizer& operator=(Optimizer&&) noexcept;

  const Problem& problem() const;
  const Plan& plan() const;
  int64_t scratch_bytes() const;  // allocated, beyond weights, gradients and state
  int32_t groups() const;
  Group& group(int32_t index);  // throws InvalidArgument
  int64_t steps() const;        // done, skipped ones included

  // gradients[p] is this rank's shard of parameter p's gradient, laid out as the weights are; null: there is none. A
  // parameter without any gradient on any rank sits the step out; where only some shards have none, theirs are zero.
  // Bad input throws InvalidArgument on every rank and changes nothing. After any other error weights are in between:
  // step() and save() throw it again until load() or import_state() has restored everything.
  //
  // On a device step() returns when its work is enqueued. What is wrong with the caller's own arguments it throws at
  // once; what another rank refused or a peer's death broke off, a later step() throws, two steps later at most, or
  // synchronize(). A step that was refused has changed nothing, and counts; one that throws what another refused is
  // made all the same. Norms, a trace and NonFinite::kError make it wait.
  const StepStats& step(std::span<void* const> gradients, const StepOptions& options = {});
  // With OptimizerOptions::overlap: a step begins with the first gradient, and step() ends it. Hyperparameters are as
  // they are here, until then. `options` as for step(). On a device it waits for the end of the step before.
  void begin_step(const StepOptions& options = {});
  // This gradient is there, for good: it stays as it is, where it is, until step() returns. Each at most once a step,
  // in any order, on this rank alone; step() is given all of them again, and those that were not ready. A wave whose
  // gradients are all ready starts when its turn comes; so weights change from now on. Never waits for another rank.
  // What others refuse, step() throws. Null: nothing new, but what has begun goes on as far as it can.
  //
  // On a device it is there when what Device::stream was given so far is done; follow() says where, if it is not always
  // one stream. A wave is enqueued beside that stream, which waits for all of them in step(). Weights are in between if
  // a rank refuses the step after a wave has begun; ranks that hear of it later throw from synchronize() or what they
  // call next.
  void ready(int32_t parameter, void* gradient);
  // The norm that step() would clip by.
  double grad_norm(std::span<void* const> gradients, double grad_scale = 1);

  // Waits for the steps under way on a device, and throws what they came to.
  void synchronize();
  // On a device: `stream` is Device::stream from now on.
  void follow(void* stream);
  // This rank's shard of a parameter, and what else its form says, is at these addresses now, values and all. Not
  // collective. Throws InvalidArgument.
  void move(int32_t parameter, void* weight, void* extra = nullptr);
  // Moves the state that holders keep to these addresses; null leaves one where it was.
  struct StateMemory {
    void* momentum = nullptr;
    void* second = nullptr;
    void* statistics = nullptr;
  };
  void move_state(int32_t parameter, const StateMemory& state);

  const StepStats& last_step() const;            // the last that was not refused
  const std::vector<TraceEvent>& trace() const;  // of the last step, if it was asked for

  // State and weights in logical form: the same names, shapes and values whatever the layout.
  std::vector<StateInfo> state() const;
  StateTensor export_state(const std::string& name);  // all ranks together; each gets the whole
  // All ranks give the same, each name once. Checks everything first.
  void import_state(std::span<const StateTensor> tensors);

  // The caller has restored weights and all state in its own memory: the optimizer goes on after an error. Not
  // collective; ranks that restored another number of steps are named by the next step().
  void restored();

  // A checkpoint is a directory. save() replaces the one that is there when the new one is whole: whatever happens in
  // between, one of the two loads. All ranks together, on a file system they share.
  void save(const std::string& directory);
  // From a checkpoint of any layout and number of ranks. What is damaged is named; then nothing was changed.
  void load(const std::string& directory);

  // After a CommError: goes on with another communicator of the same size and rank. If any rank had broken off, all
  // ranks need a state to be loaded first.
  void reconnect(Communicator& communicator);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace muster
