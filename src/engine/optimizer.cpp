#include "muster/optimizer.h"

#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "backends.h"
#include "engine/optimizer_impl.h"
#include "engine/step/hyperparameters.h"
#include "engine/step/lent.h"

namespace muster {

namespace {

constexpr size_t kMostPrograms = 16;
constexpr int kMostThreads = 4096;

}  // namespace

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
  if (options_.overlap) {
    if (options_.plan.strategy != Strategy::kGlobal) {
      throw InvalidArgument(
          fmt::format("overlap: strategy {} fixes its own waves; expected global", name(options_.plan.strategy)));
    }
    options_.plan.elementwise = ElementwiseOrder::kLast;
  }
  catalog_.emplace(problem_);
  holdings_.emplace(*catalog_, rank_);
  engine::check_memory(problem_, *holdings_, memory_, static_cast<int32_t>(options_.groups.size()), rank_);
  for (const ParameterMemory& memory : memory_) group_of_.push_back(memory.group);
  plan_ = make_plan(problem_, options_.plan);
  kernels_ = make_kernels(options_.device, options_.threads);
  recorder_.follow(kernels_->stream());
  state_.emplace(engine::StateInput{.catalog = *catalog_,
                                    .plan = plan_,
                                    .rank = rank_,
                                    .options = options_,
                                    .memory = memory_,
                                    .kernels = *kernels_});
  const engine::Program& all =
      programs_
          .emplace(
              std::vector<bool>{},
              engine::compile({.catalog = *catalog_, .plan = plan_, .rank = rank_, .group_of = group_of_}, *state_))
          .first->second;
  state_->allocate();
  const int64_t cap = options_.plan.strategy == Strategy::kGlobal ? options_.plan.scratch_bytes : 0;
  executor_.emplace(*catalog_, memory_, options_.groups, group_of_, options_.momentum, cap, *kernels_, *state_,
                    recorder_, all);
  // The table says how wide the kernels compute, and with it what the plan counts on.
  if (cap > 0 && executor_->scratch_bytes() > cap) {
    throw InvalidArgument(fmt::format("scratch_bytes {}: rank {} needs {}; cost table '{}' is for another device", cap,
                                      rank_, executor_->scratch_bytes(), options_.plan.cost.device));
  }
  parameter_stats_.emplace(*catalog_, *kernels_);
  control_.emplace(problem_, *holdings_, memory_, options_.groups, *kernels_, *executor_, recorder_,
                   [this](const std::vector<bool>& active) -> const engine::Program& { return program(active); });
  if (!options_.overlap) return;
  overlap_.emplace(*catalog_, plan_, *holdings_, options_.groups, *control_, *executor_, recorder_);
}

void Optimizer::Impl::connect(Communicator& communicator) {
  communicator_ = &communicator;
  link_ = {&communicator, communicator.on_stream()};
  bridge_.reset();
  if (kernels_->stream() != nullptr && link_.stream == nullptr) {
    link_.stream = &bridge_.emplace(communicator, *kernels_);
  }
}

// For a step in which everybody takes part, however few do in the first: a rank whose table grew later would record its
// steps anew while others replay theirs.
void Optimizer::Impl::make_room() {
  const std::vector<void*> none(problem_.parameters.size());
  StepOptions options;  // whatever can be asked of a step
  options.max_grad_norm = 1;
  options.non_finite = NonFinite::kError;
  options.parameter_stats = true;
  constexpr int64_t kEverybody = 0;  // the turn of all groups
  const engine::Ballots ballots = engine::fill_in(control_->question(kEverybody, *communicator_), none, options);
  const engine::StepInput input{none, 1, 1, control_->active(), control_->clip(), &*parameter_stats_};
  const engine::Program& all = program({});
  recorder_.start(0, false);
  kernels_->stream()->reserve_table([&] {
    control_->enqueue(none, options, kEverybody, ballots, link_);
    executor_->start(all);
    executor_->run(all, input, link_);
    parameter_stats_->add_weights(*holdings_, memory_);
    control_->end_step(state_->updates());
  });
}

void Optimizer::Impl::give_up(Failure why) {
  broken_ = std::move(why);
  under_way_.clear();
  record_anew_ = kNever;
  if (overlap_) overlap_->drop();
  if (executor_) executor_->abandon();
  if (kernels_ == nullptr || kernels_->stream() == nullptr) return;
  try {
    kernels_->stream()->drop_graphs();
  } catch (const DeviceError&) {  // what broke the step
  }
}

const engine::Program& Optimizer::Impl::program(const std::vector<bool>& active) {
  const bool all = std::find(active.begin(), active.end(), false) == active.end();
  const std::vector<bool> key = all ? std::vector<bool>{} : active;
  const auto found = programs_.find(key);
  if (found != programs_.end()) return found->second;
  if (programs_.size() >= kMostPrograms) programs_.erase(std::prev(programs_.end()));  // the first one is everybody's
  engine::Program& made =
      programs_
          .emplace(key, engine::compile(
                            {.catalog = *catalog_, .plan = plan_, .rank = rank_, .group_of = group_of_, .active = key},
                            *state_))
          .first->second;
  made.number = ++compiled_;
  return made;
}

const StepStats& Optimizer::Impl::step(std::span<void* const> gradients, const StepOptions& options) {
  require_whole();
  const bool on_host = kernels_->stream() == nullptr;
  if (!overlap_) return on_host ? step_on_host(gradients, options) : step_on_stream(gradients, options);
  if (!overlap_->under_way()) begin_step({.trace = options.trace});
  return on_host ? end_on_host(gradients, options) : end_on_stream(gradients, options);
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
      if (options.parameter_stats) parameter_stats_->start();
      const engine::StepInput input{gradients, options.grad_scale * accord.clip,
                                    number,    nullptr,
                                    nullptr,   options.parameter_stats ? &*parameter_stats_ : nullptr};
      const engine::Program& own = program(accord.active);
      executor_->start(own);
      executor_->run(own, input, link_);
      if (options.parameter_stats) {
        const auto timed = recorder_.span(Stage::kControl);
        parameter_stats_->add_weights(*holdings_, memory_);
        parameter_stats_->report(*communicator_, what + " statistics", recorder_.stats.parameters);
      }
      for (size_t p = 0; p < parameters; ++p) state_->updates()[p] += accord.active[p] ? 1 : 0;
    }
    state_->steps = number;
  });
  recorder_.finish();
  return recorder_.last_stats;
}

const StepStats& Optimizer::Impl::step_on_stream(std::span<void* const> gradients, const StepOptions& options) {
  kernels::AsyncDevice& stream = *kernels_->stream();
  settle(kernels::AsyncDevice::kStepsInFlight - 1);
  const int64_t number = state_->steps + 1;
  const std::string what = fmt::format("step {}", number);
  if (stream.step() + 1 >= record_anew_) {
    settle(0);
    or_break(what, [&] { stream.drop_graphs(); });
    record_anew_ = kNever;
  }
  const size_t parameters = problem_.parameters.size();
  recorder_.start(number, options.trace);
  const bool record = options_.graph && !options.trace && !options.parameter_stats && (!bridge_ || ranks_ == 1);
  const engine::Ballots ballots =
      engine::fill_in(control_->question(number, *communicator_, record), gradients, options);
  const bool refuses = !ballots.refusal.empty();
  if (refuses && ranks_ == 1) throw InvalidArgument(fmt::format("{}: {}", what, ballots.refusal));
  const std::vector<void*> none(parameters);
  if (refuses) gradients = none;  // the others wait for this rank's word, and then change nothing
  // And by what all of them had agreed upon: the shape of a step must not depend on what one of them refuses.
  std::optional<engine::Lent<std::vector<Group>>> lent;
  if (!refuses || engine::all_valid(options_.groups)) {
    agreed_ = options_.groups;
  } else {
    lent.emplace(options_.groups, agreed_);
  }
  or_break(what, [&] {
    engine::ParameterStatsCollector* const stats = options.parameter_stats ? &*parameter_stats_ : nullptr;
    const engine::StepInput input{gradients, options.grad_scale, number, control_->active(), control_->clip(), stats};
    const kernels::Range range(stream, what);
    do {
      recorder_.restart(number);
      stream.begin_step(record);
      stream.add_to_key(control_->kind(options, number));
      if (stats != nullptr && !stream.dry_run()) stats->start();
      control_->enqueue(gradients, options, number, ballots, link_);
      const engine::Program& own = program(control_->by_schedule(number));
      executor_->start(own);
      const auto run = [&] { executor_->run(own, input, link_); };
      if (!stream.memoize(executor_->inputs(own, input), run)) executor_->count_traffic(own);
      if (stats != nullptr) stats->add_weights(*holdings_, memory_);
      control_->end_step(state_->updates());
    } while (!stream.end_step());
    recorder_.stats.kernels = stream.launches();
    recorder_.stats.replayed = stream.replayed();
  });
  state_->steps = number;
  under_way_.push_back({stream.step(), number, options, ballots.refusal});
  if (refuses) throw InvalidArgument(fmt::format("{}: {}", what, ballots.refusal));
  if (options.parameter_stats) recorder_.stats.parameters.resize(parameters);
  const bool looks = options.grad_norm || options.parameter_stats || options.trace;
  const bool refused = (looks || options.non_finite == NonFinite::kError) && settle(0);
  if (options.parameter_stats && !recorder_.stats.skipped) {
    or_break(what, [&] {
      control_->read_norms(options.grad_scale);
      parameter_stats_->report(*communicator_, what + " statistics", recorder_.stats.parameters);
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
    const std::span<const std::byte> sent = kernels_->stream()->read_back_of(step.stream_step);
    const bool told = !step.refusal.empty();
    Failure why = told ? fmt::format("{}: {}", what, step.refusal) : "";
    engine::Control::Outcome outcome{true, 0, 1};
    try {
      if (!told) outcome = control_->read(sent, step.options, step.number);
    } catch (const InvalidArgument& error) {
      why = error.failure();
    }
    refused = !why.empty();
    // Ranks that disagreed may have recorded different steps. By then all of them know.
    if (refused && ranks_ > 1) {
      record_anew_ = std::min(record_anew_, step.stream_step + kernels::AsyncDevice::kStepsInFlight);
    }
    if (refused && engine::Control::begun(sent)) {  // some waves were made, and some were not
      why = why.within(what + " broke off");
      give_up(why);
    }
    if (refused && !told) refused_ = refused_.empty() ? why : refused_.followed_by(why);
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
  if (overlap_) engine::check_overlap(options);
  options.grad_scale = grad_scale;
  const int64_t number = state_->steps + 1;
  const std::string what = fmt::format("the gradient norm before step {}", number);
  recorder_.start(number, false);
  if (kernels_->stream() == nullptr) {
    or_refuse(what, [&] { return control_->settle(gradients, options, number, *communicator_); });
    return recorder_.stats.grad_norm;
  }
  settle(0);
  kernels::AsyncDevice& stream = *kernels_->stream();
  const engine::Ballots ballots = engine::fill_in(control_->question(number, *communicator_), gradients, options);
  const std::vector<void*> none(problem_.parameters.size());
  std::optional<engine::Lent<std::vector<Group>>> lent;
  if (!ballots.refusal.empty() && !engine::all_valid(options_.groups)) lent.emplace(options_.groups, agreed_);
  or_break(what, [&] {
    do {
      stream.begin_step(false);
      control_->enqueue(ballots.refusal.empty() ? gradients : none, options, number, ballots, link_);
      control_->send();
    } while (!stream.end_step());
    link_.stream->watch([&] { return stream.done(stream.step()); }, what);
  });
  if (!ballots.refusal.empty()) throw InvalidArgument(fmt::format("step {}: {}", number, ballots.refusal));
  return control_->read(stream.read_back_of(stream.step()), options, number).norm;
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
void Optimizer::begin_step(const StepOptions& options) { impl_->begin_step(options); }
void Optimizer::ready(int32_t parameter, void* gradient) { impl_->ready(parameter, gradient); }
double Optimizer::grad_norm(std::span<void* const> gradients, double grad_scale) {
  return impl_->grad_norm(gradients, grad_scale);
}
void Optimizer::synchronize() { impl_->synchronize(); }
void Optimizer::follow(void* stream) { impl_->follow(stream); }
void Optimizer::move(int32_t parameter, void* weight, void* extra) { impl_->move(parameter, weight, extra); }
void Optimizer::move_state(int32_t parameter, const StateMemory& state) { impl_->move_state(parameter, state); }
void Optimizer::restored() { impl_->restored(); }
const StepStats& Optimizer::last_step() const { return impl_->recorder_.last_stats; }
const std::vector<TraceEvent>& Optimizer::trace() const { return impl_->recorder_.last_events; }

std::vector<StateInfo> Optimizer::state() const {
  std::vector<StateInfo> out;
  for (const engine::StateShard& shard : impl_->state_->shards()) out.push_back(shard.info);
  return out;
}
StateTensor Optimizer::export_state(const std::string& name) { return impl_->export_state(name); }
void Optimizer::import_state(std::span<const StateTensor> tensors) { impl_->import_state(tensors); }
void Optimizer::save(const std::string& directory) { impl_->save(directory); }
void Optimizer::load(const std::string& directory) { impl_->load(directory); }
void Optimizer::reconnect(Communicator& communicator) { impl_->reconnect(communicator); }

}  // namespace muster
