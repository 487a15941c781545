// What an optimizer is made of.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "engine/program/program.h"
#include "engine/state/state.h"
#include "engine/step/agreement.h"
#include "engine/step/control.h"
#include "engine/step/executor.h"
#include "engine/step/fail_together.h"
#include "engine/step/host_bridge.h"
#include "engine/step/overlap.h"
#include "engine/step/recorder.h"
#include "kernels/kernels.h"
#include "muster/error.h"
#include "muster/optimizer.h"

namespace muster {

class Optimizer::Impl {
 public:
  Impl(Problem problem, OptimizerOptions options, Communicator& communicator, std::vector<ParameterMemory> memory)
      : problem_(std::move(problem)),
        options_(std::move(options)),
        rank_(communicator.rank()),
        ranks_(communicator.size()),
        memory_(std::move(memory)) {
    engine::together(communicator, "check arguments", [&] { build(); });
    connect(communicator);
    engine::agree_on_plan(problem_, plan_, options_, memory_, communicator);
    engine::agree_on_replicas(problem_, *holdings_, memory_, *kernels_, communicator);
    engine::together(communicator, "make room", [&] {
      if (kernels_->stream() != nullptr && !overlap_) make_room();
    });
  }
  ~Impl() {
    try {
      if (overlap_ && overlap_->under_way()) communicator_->abort("an optimizer went in the middle of a step");
      if (broken_.empty()) settle(0);
    } catch (const std::exception&) {  // nobody is left to hear of it
    }
  }

  const StepStats& step(std::span<void* const> gradients, const StepOptions& options);
  void begin_step(const StepOptions& options);
  void ready(int32_t parameter, void* gradient);
  double grad_norm(std::span<void* const> gradients, double grad_scale);
  void reconnect(Communicator& communicator);

  void require_whole() const {
    if (!broken_.empty()) throw CommError(broken_);
  }
  void require_no_step() const {
    if (!overlap_ || !overlap_->under_way()) return;
    throw InvalidArgument(fmt::format("step {} is under way: step() ends it", state_->steps + 1));
  }
  StateTensor export_state(const std::string& name);
  void import_state(std::span<const StateTensor> tensors);
  void settle_all() {
    settle(0);
    require_whole();
  }
  void synchronize() {
    require_whole();
    settle(0);
    if (!refused_.empty()) throw InvalidArgument(std::exchange(refused_, {}));
  }
  void follow(void* stream) {
    if (kernels_->stream() != nullptr) kernels_->stream()->follow(stream);
  }
  void check_number(int32_t parameter) const {
    if (parameter >= 0 && parameter < static_cast<int32_t>(memory_.size())) return;
    throw InvalidArgument(fmt::format("parameter {}: expected 0 to {}", parameter, memory_.size() - 1));
  }
  void move(int32_t parameter, void* weight, void* extra);
  void move_state(int32_t parameter, const StateMemory& state);
  void restored();
  void save(const std::string& directory);
  void load(const std::string& directory);

  // In a catch block, after something that leaves weights or ranks in between: nobody waits for this rank, and it does
  // not go on.
  [[noreturn]] void break_off(std::string_view what) {
    try {
      throw;
    } catch (const CommError& error) {
      give_up(error.failure().within(fmt::format("{} broke off", what)));
      throw CommError(broken_);
    } catch (const std::exception& error) {
      const std::string why = fmt::format("{} broke off: {}", what, error.what());
      communicator_->abort(why);  // first: giving up waits for what is under way
      give_up(why);
      throw;
    }
  }
  template <typename Work>
  auto or_break(std::string_view what, Work work) {
    try {
      return work();
    } catch (...) {
      break_off(what);
    }
  }
  // Bad input is refused on every rank, before anything was changed; the optimizer then goes on.
  template <typename Work>
  auto or_refuse(std::string_view what, Work work) {
    try {
      return work();
    } catch (const InvalidArgument&) {
      throw;
    } catch (...) {
      break_off(what);
    }
  }

  Problem problem_;
  OptimizerOptions options_;
  Plan plan_;
  std::unique_ptr<kernels::Kernels> kernels_;  // whose memory the rest has
  std::optional<engine::State> state_;
  std::optional<engine::Executor> executor_;
  engine::Recorder recorder_;

 private:
  void build();
  void connect(Communicator& communicator);
  void make_room();
  void give_up(Failure why);

  const StepStats& step_on_host(std::span<void* const> gradients, const StepOptions& options);
  const StepStats& step_on_stream(std::span<void* const> gradients, const StepOptions& options);
  // Of a step that has begun.
  const StepStats& end_on_host(std::span<void* const> gradients, const StepOptions& options);
  const StepStats& end_on_stream(std::span<void* const> gradients, const StepOptions& options);
  // Waits until only so many steps are under way on the device, and keeps why others were refused; whether the last
  // was. One that began early and then was refused breaks off.
  bool settle(size_t under_way);
  const engine::Program& program(const std::vector<bool>& active);

  Communicator* communicator_ = nullptr;
  const int32_t rank_;
  const int32_t ranks_;
  std::vector<ParameterMemory> memory_;
  std::vector<int32_t> group_of_;
  std::optional<plan::Catalog> catalog_;
  std::optional<engine::Holdings> holdings_;
  std::map<std::vector<bool>, engine::Program> programs_;  // by active parameters; empty: all
  int64_t compiled_ = 0;                                   // after the first
  std::optional<engine::Control> control_;
  std::optional<engine::ParameterStatsCollector> parameter_stats_;
  std::optional<engine::Overlap> overlap_;
  Failure broken_;             // why no further step is possible
  std::vector<Group> agreed_;  // the last that were valid; those of a step in waves on a device

  // Steps that a device has been given and whose outcome nobody has looked at.
  struct UnderWay {
    int64_t stream_step = 0;
    int64_t number = 0;
    StepOptions options;
    std::string refusal{};  // of this rank, which has said so
  };
  std::deque<UnderWay> under_way_;
  Failure refused_;  // what nobody has been told yet
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  int64_t record_anew_ = kNever;  // from this step of the stream on, whatever was recorded
  std::optional<engine::HostBridge> bridge_;
  engine::Executor::Link link_;
};

}  // namespace muster
