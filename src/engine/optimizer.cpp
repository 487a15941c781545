#include "muster/optimizer.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "backends.h"
#include "engine/agreement.h"
#include "engine/checkpoint.h"
#include "engine/checkpoint_tensors.h"
#include "engine/control.h"
#include "engine/executor.h"
#include "engine/host_bridge.h"
#include "engine/lent.h"
#include "engine/program.h"
#include "engine/recorder.h"
#include "engine/state.h"
#include "engine/together.h"
#include "engine/transfer.h"
#include "kernels/kernels.h"
#include "muster/error.h"

namespace muster {

using kernels::SumOfSquares;

namespace {

constexpr size_t kMostPrograms = 16;
constexpr int kMostThreads = 4096;

}  // namespace

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
  }
  ~Impl() {
    try {
      if (broken_.empty()) settle(0);
    } catch (const std::exception&) {  // nobody is left to hear of it
    }
  }

  const StepStats& step(std::span<void* const> gradients, const StepOptions& options);
  double grad_norm(std::span<void* const> gradients, double grad_scale);
  void reconnect(Communicator& communicator);

  void require_whole() const {
    if (!broken_.empty()) throw CommError(broken_);
  }
  StateTensor export_state(const std::string& name);
  void import_state(std::span<const StateTensor> tensors);
  void synchronize() {
    require_whole();
    settle(0);
    if (!refused_.empty()) throw InvalidArgument(std::exchange(refused_, {}));
  }
  void follow(void* stream) {
    if (kernels_->stream() != nullptr) kernels_->stream()->follow(stream);
  }
  void move(int32_t parameter, void* weight, void* extra);
  void save(const std::string& directory);
  void load(const std::string& directory);

  // In a catch block, after something that leaves weights or ranks in between: nobody waits for this rank, and it does
  // not go on.
  [[noreturn]] void break_off(std::string_view what) {
    try {
      throw;
    } catch (const CommError& error) {
      give_up(fmt::format("{} broke off: {}", what, error.what()));
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
  void give_up(std::string why);

  const StepStats& step_on_host(std::span<void* const> gradients, const StepOptions& options);
  const StepStats& step_on_stream(std::span<void* const> gradients, const StepOptions& options);
  // Waits until only so many steps are under way on the device, and keeps why others were refused; whether the last
  // was.
  bool settle(size_t under_way);
  const engine::Program& program(const std::vector<bool>& active);
  engine::StateSlice find_state(const std::string& name);

  Communicator* communicator_ = nullptr;
  const int32_t rank_;
  const int32_t ranks_;
  std::vector<ParameterMemory> memory_;
  std::vector<int32_t> group_of_;
  std::optional<plan::Catalog> catalog_;
  std::optional<engine::Holdings> holdings_;
  std::map<std::vector<bool>, engine::Program> programs_;  // by active parameters; empty: all
  std::optional<engine::Control> control_;
  std::string broken_;         // why no further step is possible
  std::vector<Group> agreed_;  // the last that this rank did not refuse

  // Steps that a device has been given and whose outcome nobody has looked at.
  struct UnderWay {
    int64_t stream_step = 0;
    int64_t number = 0;
    StepOptions options;
    bool refused = false;  // by this rank, which has said so
  };
  std::deque<UnderWay> under_way_;
  std::string refused_;  // what nobody has been told yet
  std::optional<engine::HostBridge> bridge_;
  engine::Executor::Link link_;
};

void Optimizer::Impl::build() {
  muster::validate(problem_);
  if (ranks_ != problem_.ranks) {
    throw InvalidArgument(fmt::format("a problem of {} ranks on a communicator of {}", problem_.ranks, ranks_));
  }
  if (options_.momentum == Dtype::kF16) throw InvalidArgument("momentum f16: expected f32 or bf16");
  if (problem_.wire == Dtype::kF16) throw InvalidArgument("wire f16: expected f32 or bf16");
  if (options_.threads < 1 || options_.threads > kMostThreads) {
    throw InvalidArgument(fmt::format("threads {}: expected 1 to {}", options_.threads, kMostThreads));
  }
  if (options_.groups.empty()) throw InvalidArgument("groups: none");
  for (const Group& group : options_.groups) muster::validate(group);
  agreed_ = options_.groups;
  catalog_.emplace(problem_);
  holdings_.emplace(*catalog_, rank_);
  engine::check_memory(problem_, *holdings_, memory_, static_cast<int32_t>(options_.groups.size()), rank_);
  for (const ParameterMemory& memory : memory_) group_of_.push_back(memory.group);
  plan_ = make_plan(problem_, options_.plan);
  kernels_ = make_kernels(options_.device, options_.threads);
  recorder_.follow(kernels_->stream());
  state_.emplace(*catalog_, plan_, rank_, options_.momentum, memory_, *kernels_);
  const engine::Program& all =
      programs_.emplace(std::vector<bool>{}, engine::compile(*catalog_, plan_, rank_, group_of_, {}, *state_))
          .first->second;
  state_->allocate();
  state_->seed = static_cast<int64_t>(options_.seed);
  const int64_t cap = options_.plan.strategy == Strategy::kGlobal ? options_.plan.scratch_bytes : 0;
  executor_.emplace(*catalog_, memory_, options_.groups, group_of_, options_.momentum, cap, *kernels_, *state_,
                    recorder_, all);
  // The table says how wide the kernels compute, and with it what the plan counts on.
  if (cap > 0 && executor_->scratch_bytes() > cap) {
    throw InvalidArgument(fmt::format("scratch_bytes {}: rank {} needs {}; cost table '{}' is for another device", cap,
                                      rank_, executor_->scratch_bytes(), options_.plan.cost.device));
  }
  control_.emplace(problem_, *holdings_, memory_, options_.groups, *kernels_, *executor_, recorder_,
                   [this](const std::vector<bool>& active) -> const engine::Program& { return program(active); });
}

void Optimizer::Impl::connect(Communicator& communicator) {
  communicator_ = &communicator;
  link_ = {&communicator, communicator.on_stream()};
  bridge_.reset();
  if (kernels_->stream() != nullptr && link_.stream == nullptr) {
    link_.stream = &bridge_.emplace(communicator, *kernels_);
  }
}

void Optimizer::Impl::give_up(std::string why) {
  broken_ = std::move(why);
  under_way_.clear();
  if (executor_) executor_->abandon();
  if (kernels_ == nullptr || kernels_->stream() == nullptr) return;
  try {
    kernels_->stream()->forget();
  } catch (const DeviceError&) {  // what broke the step
  }
}

const engine::Program& Optimizer::Impl::program(const std::vector<bool>& active) {
  const bool all = std::find(active.begin(), active.end(), false) == active.end();
  const std::vector<bool> key = all ? std::vector<bool>{} : active;
  const auto found = programs_.find(key);
  if (found != programs_.end()) return found->second;
  if (programs_.size() >= kMostPrograms) programs_.erase(std::prev(programs_.end()));  // the first one is everybody's
  return programs_.emplace(key, engine::compile(*catalog_, plan_, rank_, group_of_, key, *state_)).first->second;
}

const StepStats& Optimizer::Impl::step(std::span<void* const> gradients, const StepOptions& options) {
  require_whole();
  return kernels_->stream() == nullptr ? step_on_host(gradients, options) : step_on_stream(gradients, options);
}

const StepStats& Optimizer::Impl::step_on_host(std::span<void* const> gradients, const StepOptions& options) {
  const int64_t number = state_->steps + 1;
  const std::string what = fmt::format("step {}", number);
  const size_t parameters = problem_.parameters.size();
  recorder_.start(number, options.trace);
  if (options.parameter_stats) recorder_.stats.parameters.resize(parameters);
  const engine::Accord accord =
      or_refuse(what, [&] { return control_->settle(gradients, options, number, *communicator_); });
  or_break(what, [&] {
    if (accord.skip) {
      recorder_.stats.skipped = true;
    } else {
      std::vector<SumOfSquares> changes(options.parameter_stats ? parameters : 0);
      const engine::StepInput input{gradients, options.grad_scale * accord.clip,
                                    number,    nullptr,
                                    nullptr,   options.parameter_stats ? &changes : nullptr};
      executor_->run(program(accord.active), input, link_);
      if (options.parameter_stats) {
        const auto timed = recorder_.span(Stage::kControl);
        control_->report_changes(changes, number, *communicator_);
      }
      for (size_t p = 0; p < parameters; ++p) state_->updates()[p] += accord.active[p] ? 1 : 0;
    }
    state_->steps = number;
  });
  recorder_.finish();
  return recorder_.last_stats;
}

const StepStats& Optimizer::Impl::step_on_stream(std::span<void* const> gradients, const StepOptions& options) {
  kernels::Stream& stream = *kernels_->stream();
  settle(kernels::Stream::kStepsInFlight - 1);
  const int64_t number = state_->steps + 1;
  const std::string what = fmt::format("step {}", number);
  const size_t parameters = problem_.parameters.size();
  recorder_.start(number, options.trace);
  const engine::Ballots ballots = engine::fill_in(control_->question(number, *communicator_), gradients, options);
  const bool refuses = !ballots.refusal.empty();
  if (refuses && ranks_ == 1) throw InvalidArgument(fmt::format("{}: {}", what, ballots.refusal));
  const std::vector<void*> none(parameters);
  if (refuses) gradients = none;  // the others wait for this rank's word, and then change nothing
  // And by what all of them had agreed upon: the shape of a step must not depend on what one of them refuses.
  std::optional<engine::Lent<std::vector<Group>>> lent;
  if (refuses) {
    lent.emplace(options_.groups, agreed_);
  } else {
    agreed_ = options_.groups;
  }
  std::vector<SumOfSquares> changes(options.parameter_stats ? parameters : 0);
  or_break(what, [&] {
    const engine::StepInput input{gradients,          options.grad_scale, number,
                                  control_->active(), control_->clip(),   options.parameter_stats ? &changes : nullptr};
    const bool record = options_.graph && !options.trace && !options.parameter_stats && (!bridge_ || ranks_ == 1);
    stream.push(what);
    do {
      recorder_.restart(number);
      stream.begin_step(record);
      control_->enqueue(gradients, options, number, ballots, link_);
      executor_->run(program(control_->by_schedule(number)), input, link_);
      control_->end_step(state_->updates());
    } while (!stream.end_step());
    stream.pop();
    recorder_.stats.kernels = stream.launches();
  });
  state_->steps = number;
  under_way_.push_back({stream.step(), number, options, refuses});
  if (refuses) throw InvalidArgument(fmt::format("{}: {}", what, ballots.refusal));
  if (options.parameter_stats) recorder_.stats.parameters.resize(parameters);
  const bool looks = options.grad_norm || options.parameter_stats || options.trace;
  const bool refused = (looks || options.non_finite == NonFinite::kError) && settle(0);
  if (options.parameter_stats && !recorder_.stats.skipped) {
    or_break(what, [&] {
      control_->read_norms(options.grad_scale);
      control_->report_changes(changes, number, *communicator_);
    });
  }
  if (!refused) recorder_.finish();
  // Now that this rank has made its step too: the one that refused has heard of it before.
  if (!refused_.empty()) throw InvalidArgument(std::exchange(refused_, {}));
  return recorder_.last_stats;
}

bool Optimizer::Impl::settle(size_t under_way) {
  bool refused = false;
  while (under_way_.size() > under_way) {
    const UnderWay step = under_way_.front();
    const std::string what = fmt::format("step {}", step.number);
    or_break(what, [&] { link_.stream->watch([&] { return kernels_->stream()->done(step.stream_step); }, what); });
    under_way_.pop_front();
    refused = step.refused;
    if (refused) continue;
    engine::Control::Outcome outcome{true, 0, 1};
    try {
      outcome = control_->read(kernels_->stream()->sent(step.stream_step), step.options, step.number);
    } catch (const InvalidArgument& error) {
      refused = true;
      refused_ += (refused_.empty() ? "" : "; ") + std::string(error.what());
    }
    StepStats& stats = recorder_.stats.step == step.number ? recorder_.stats : recorder_.last_stats;
    if (stats.step != step.number) continue;
    stats.skipped = outcome.skipped;
    stats.grad_norm = outcome.norm;
    stats.clip = outcome.clip;
  }
  return refused;
}

double Optimizer::Impl::grad_norm(std::span<void* const> gradients, double grad_scale) {
  require_whole();
  StepOptions options;
  options.grad_norm = true;
  options.grad_scale = grad_scale;
  const int64_t number = state_->steps + 1;
  const std::string what = fmt::format("the gradient norm before step {}", number);
  recorder_.start(number, false);
  if (kernels_->stream() == nullptr) {
    or_refuse(what, [&] { return control_->settle(gradients, options, number, *communicator_); });
    return recorder_.stats.grad_norm;
  }
  settle(0);
  kernels::Stream& stream = *kernels_->stream();
  const engine::Ballots ballots = engine::fill_in(control_->question(number, *communicator_), gradients, options);
  const std::vector<void*> none(problem_.parameters.size());
  std::optional<engine::Lent<std::vector<Group>>> lent;
  if (!ballots.refusal.empty()) lent.emplace(options_.groups, agreed_);
  or_break(what, [&] {
    do {
      stream.begin_step(false);
      control_->enqueue(ballots.refusal.empty() ? gradients : none, options, number, ballots, link_);
      control_->send();
    } while (!stream.end_step());
    link_.stream->watch([&] { return stream.done(stream.step()); }, what);
  });
  if (!ballots.refusal.empty()) throw InvalidArgument(fmt::format("step {}: {}", number, ballots.refusal));
  return control_->read(stream.sent(stream.step()), options, number).norm;
}

void Optimizer::Impl::reconnect(Communicator& communicator) {
  engine::together(communicator, "reconnect", [&] {
    if (communicator.rank() == rank_ && communicator.size() == ranks_) return;
    throw InvalidArgument(fmt::format("reconnect: rank {} of {}, expected rank {} of {}", communicator.rank(),
                                      communicator.size(), rank_, ranks_));
  });
  if (broken_.empty()) {
    try {
      settle(0);              // in bounded time; ends what waits for a peer that is gone
    } catch (const Error&) {  // broken_ says so
    }
  }
  under_way_.clear();
  refused_.clear();
  executor_->abandon();
  if (kernels_->stream() != nullptr) kernels_->stream()->forget();
  connect(communicator);
  engine::agree_on_plan(problem_, plan_, options_, memory_, *communicator_);
  // Where one rank broke off, another may have come through, or not have begun.
  int64_t most[] = {broken_.empty() ? 0 : 1, state_->steps, -state_->steps};
  communicator_->all_reduce(most, ReduceOp::kMax, "compare steps")->wait();
  const bool whole = most[0] == 0 && most[1] == -most[2];
  if (!whole && broken_.empty()) broken_ = "reconnected to ranks of which some broke off: load a state first";
}

void Optimizer::Impl::move(int32_t parameter, void* weight, void* extra) {
  if (parameter < 0 || parameter >= static_cast<int32_t>(memory_.size())) {
    throw InvalidArgument(fmt::format("parameter {}: expected 0 to {}", parameter, memory_.size() - 1));
  }
  std::vector<ParameterMemory> moved = memory_;
  moved[parameter].weight = weight;
  moved[parameter].extra = extra;
  engine::check_memory(problem_, *holdings_, moved, static_cast<int32_t>(options_.groups.size()), rank_);
  memory_[parameter] = moved[parameter];  // in place: others look at it
}

engine::StateSlice Optimizer::Impl::find_state(const std::string& name) {
  for (engine::StateSlice& slice : state_->slices()) {
    if (slice.info.name == name) return std::move(slice);
  }
  throw InvalidArgument(fmt::format("state \"{}\": there is none of that name", name));
}

StateTensor Optimizer::Impl::export_state(const std::string& name) {
  require_whole();
  settle(0);
  const engine::StateSlice slice = find_state(name);
  return or_break("export of state", [&] { return engine::gather(slice, *communicator_); });
}

void Optimizer::Impl::import_state(std::span<const StateTensor> tensors) {
  settle(0);
  std::vector<engine::StateSlice> slices = state_->slices();
  std::map<std::string, engine::StateSlice*> by_name;
  for (engine::StateSlice& slice : slices) by_name[slice.info.name] = &slice;
  std::set<std::string_view> given;
  engine::together(*communicator_, "check state", [&] {
    for (const StateTensor& tensor : tensors) {
      if (!given.insert(tensor.name).second) {
        throw InvalidArgument(fmt::format("state \"{}\": given twice", tensor.name));
      }
      const auto found = by_name.find(tensor.name);
      if (found == by_name.end()) {
        throw InvalidArgument(fmt::format("state \"{}\": there is none of that name", tensor.name));
      }
      engine::check_like(found->second->info, tensor);
    }
  });
  // Or some would go on while others are still broken.
  engine::check_same(*communicator_, "import state", fmt::format("{}", fmt::join(given, "\n")));
  for (const StateTensor& tensor : tensors) {
    engine::fill(*by_name.at(tensor.name), tensor.data);
    by_name.erase(tensor.name);
  }
  if (by_name.empty()) broken_.clear();
  refused_.clear();
}

void Optimizer::Impl::save(const std::string& directory) {
  require_whole();
  settle(0);
  const std::vector<engine::StateSlice> slices = state_->slices();
  or_refuse(fmt::format("the checkpoint after step {}", state_->steps), [&] {
    engine::save_checkpoint(directory, {state_->steps, {}}, slices, *communicator_);
  });
}

void Optimizer::Impl::load(const std::string& directory) {
  settle(0);
  const std::vector<engine::StateSlice> slices = state_->slices();
  try {
    engine::load_checkpoint(directory, slices, *communicator_);
  } catch (const InvalidArgument&) {
    throw;  // nothing was changed
  } catch (const Error& error) {
    give_up(fmt::format("loading \"{}\" broke off: {}", directory, error.what()));
    throw;  // on every rank: they may try again
  } catch (...) {
    break_off(fmt::format("loading \"{}\"", directory));
  }
  broken_.clear();
  refused_.clear();
}

Optimizer::Optimizer(Problem problem, OptimizerOptions options, Communicator& communicator,
                     std::vector<ParameterMemory> memory)
    : impl_(std::make_unique<Impl>(std::move(problem), std::move(options), communicator, std::move(memory))) {}
Optimizer::~Optimizer() = default;
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer& Optimizer::operator=(Optimizer&&) noexcept = default;

const Problem& Optimizer::problem() const { return impl_->problem_; }
const Plan& Optimizer::plan() const { return impl_->plan_; }
int64_t Optimizer::scratch_bytes() const { return impl_->executor_->scratch_bytes(); }
int32_t Optimizer::groups() const { return static_cast<int32_t>(impl_->options_.groups.size()); }
Group& Optimizer::group(int32_t index) {
  if (index < 0 || index >= groups()) {
    throw InvalidArgument(fmt::format("group {}: expected 0 to {}", index, groups() - 1));
  }
  return impl_->options_.groups[index];
}
int64_t Optimizer::steps() const { return impl_->state_->steps; }

const StepStats& Optimizer::step(std::span<void* const> gradients, const StepOptions& options) {
  return impl_->step(gradients, options);
}
double Optimizer::grad_norm(std::span<void* const> gradients, double grad_scale) {
  return impl_->grad_norm(gradients, grad_scale);
}
void Optimizer::synchronize() { impl_->synchronize(); }
void Optimizer::follow(void* stream) { impl_->follow(stream); }
void Optimizer::move(int32_t parameter, void* weight, void* extra) { impl_->move(parameter, weight, extra); }
const StepStats& Optimizer::last_step() const { return impl_->recorder_.last_stats; }
const std::vector<TraceEvent>& Optimizer::trace() const { return impl_->recorder_.last_events; }

std::vector<StateInfo> Optimizer::state() const {
  std::vector<StateInfo> out;
  for (const engine::StateSlice& slice : impl_->state_->slices()) out.push_back(slice.info);
  return out;
}
StateTensor Optimizer::export_state(const std::string& name) { return impl_->export_state(name); }
void Optimizer::import_state(std::span<const StateTensor> tensors) { impl_->import_state(tensors); }
void Optimizer::save(const std::string& directory) { impl_->save(directory); }
void Optimizer::load(const std::string& directory) { impl_->load(directory); }
void Optimizer::reconnect(Communicator& communicator) { impl_->reconnect(communicator); }

}  // namespace muster
