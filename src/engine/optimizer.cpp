#include "muster/optimizer.h"

#include <utility>

#include <fmt/format.h>

#include "backends.h"
#include "engine/optimizer_impl.h"
#include "engine/step/agreement.h"
#include "engine/step/fail_together.h"
#include "engine/step/rules.h"
#include "muster/error.h"

namespace muster {

Optimizer::Optimizer(Problem problem, OptimizerOptions options, Communicator& communicator,
                     std::vector<ParameterMemory> memory)
    : impl_(std::make_unique<Impl>(std::move(problem), std::move(options), communicator, std::move(memory))) {}
Optimizer::~Optimizer() = default;
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer& Optimizer::operator=(Optimizer&&) noexcept = default;

const Problem& Optimizer::problem() const { return impl_->problem_; }
const Plan& Optimizer::plan() const { return impl_->plan_; }
int64_t Optimizer::scratch_bytes() const { return impl_->path_->scratch_bytes(); }
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
const StepStats& Optimizer::last_step() const { return impl_->timer_.last_stats; }
const std::vector<TraceEvent>& Optimizer::trace() const { return impl_->timer_.last_events; }

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

namespace {

constexpr int kMostThreads = 4096;

void check_options(const OptimizerOptions& options, Dtype wire) {
  if (options.momentum == Dtype::kF16) throw InvalidArgument("momentum f16: expected f32 or bf16");
  if (wire == Dtype::kF16) throw InvalidArgument("wire f16: expected f32 or bf16");
  if (options.threads < 1 || options.threads > kMostThreads) {
    throw InvalidArgument(fmt::format("threads {}: expected 1 to {}", options.threads, kMostThreads));
  }
  if (options.groups.empty()) throw InvalidArgument("groups: none");
  for (const Group& group : options.groups) validate(group);
  if (options.overlap && options.plan.strategy != Strategy::kGlobal) {
    throw InvalidArgument(
        fmt::format("overlap: strategy {} fixes its own waves; expected global", name(options.plan.strategy)));
  }
}

}  // namespace

Optimizer::Impl::Impl(Problem problem, OptimizerOptions options, Communicator& communicator,
                      std::vector<ParameterMemory> memory)
    : problem_(std::move(problem)),
      options_(std::move(options)),
      rank_(communicator.rank()),
      ranks_(communicator.size()),
      memory_(std::move(memory)) {
  engine::fail_together(communicator, "check arguments", [&] { build(); });
  connect(communicator);
  engine::agree_on_plan(problem_, plan_, options_, memory_, communicator);
  engine::agree_on_replicas(problem_, *holdings_, memory_, *kernels_, communicator);
  engine::fail_together(communicator, "make room", [&] {
    if (!options_.overlap) path_->reserve(options_.groups);
  });
}

Optimizer::Impl::~Impl() {
  try {
    if (path_->under_way()) link_.host->abort("an optimizer went in the middle of a step");
    if (!status_.broken()) path_->settle();
  } catch (const std::exception&) {  // a destructor has no caller to tell
  }
}

void Optimizer::Impl::build() {
  validate(problem_);
  if (ranks_ != problem_.ranks) {
    throw InvalidArgument(fmt::format("a problem of {} ranks on a communicator of {}", problem_.ranks, ranks_));
  }
  check_options(options_, problem_.wire);
  engine::describe_rules(problem_, options_, memory_);
  if (options_.overlap) options_.plan.elementwise = ElementwiseOrder::kLast;
  catalog_.emplace(problem_);
  holdings_.emplace(*catalog_, rank_);
  engine::check_memory(problem_, *holdings_, memory_, static_cast<int32_t>(options_.groups.size()));
  plan_ = make_plan(problem_, options_.plan);
  kernels_ = make_kernels(options_.device, options_.threads);
  timer_.follow(kernels_->async_device());
  // The program of all parameters reserves their places in the state, which then allocates them.
  state_.emplace(engine::StateInput{.catalog = *catalog_,
                                    .plan = plan_,
                                    .rank = rank_,
                                    .options = options_,
                                    .memory = memory_,
                                    .kernels = *kernels_});
  programs_.emplace(*catalog_, plan_, rank_, memory_, *state_);
  state_->allocate();
  row_scalings_.emplace(*catalog_, options_.row_scaling, *kernels_);
  context_.emplace(engine::StepContext{.catalog = *catalog_,
                                       .problem = problem_,
                                       .plan = plan_,
                                       .holdings = *holdings_,
                                       .memory = memory_,
                                       .kernels = *kernels_,
                                       .device = kernels_->async_device(),
                                       .state = *state_,
                                       .programs = *programs_,
                                       .row_scalings = *row_scalings_,
                                       .timer = timer_,
                                       .link = link_,
                                       .rules = options_.rules});
  path_ = engine::make_step_path(*context_, options_, status_);
  // The table says how wide the kernels compute, and the plan counts on it.
  const int64_t cap = options_.plan.scratch_bytes ? plan_.scratch_cap : 0;
  if (cap > 0 && path_->scratch_bytes() > cap) {
    throw InvalidArgument(
        {fmt::format("scratch cap of {} bytes: rank {} needs {}; cost table '{}' is for another device", cap, rank_,
                     path_->scratch_bytes(), options_.plan.cost.device),
         ErrorCode::kScratchCapTooSmall});
  }
  engine::try_rules(*catalog_, plan_, rank_, options_, memory_);
}

void Optimizer::Impl::connect(Communicator& communicator) {
  link_ = {.host = &communicator, .stream = communicator.on_stream()};
  bridge_.reset();
  if (kernels_->async_device() == nullptr || link_.stream != nullptr) return;
  link_.stream = &bridge_.emplace(communicator, *kernels_);
  link_.through_host = true;
}

const StepStats& Optimizer::Impl::step(std::span<void* const> gradients, const StepOptions& options) {
  status_.require_whole();
  if (!options_.overlap) return path_->step(request(gradients, options));
  if (!path_->under_way()) begin_step({.row_factors = options.row_factors, .trace = options.trace});
  return path_->finish(request(gradients, options));
}

void Optimizer::Impl::begin_step(const StepOptions& options) {
  status_.require_whole();
  require_no_step();
  if (!options_.overlap) throw InvalidArgument("begin_step: the optimizer was made without overlap");
  engine::check_overlap(options);
  path_->begin(request({}, options));
}

void Optimizer::Impl::ready(int32_t parameter, void* gradient) {
  status_.require_whole();
  if (!path_->under_way()) throw InvalidArgument("ready: no step has begun");
  check_number(parameter);
  path_->ready(parameter, gradient);
}

double Optimizer::Impl::grad_norm(std::span<void* const> gradients, double grad_scale) {
  status_.require_whole();
  StepOptions options;
  options.grad_norm = true;
  if (options_.overlap) engine::check_overlap(options);
  options.grad_scale = grad_scale;
  return path_->grad_norm(request(gradients, options));
}

engine::StepRequest Optimizer::Impl::request(std::span<void* const> gradients, const StepOptions& options) const {
  return {.number = state_->steps + 1, .gradients = gradients, .groups = options_.groups, .options = options};
}

void Optimizer::Impl::synchronize() {
  status_.require_whole();
  path_->settle();
  status_.report_refusals();
}

void Optimizer::Impl::follow(void* stream) {
  if (kernels_->async_device() != nullptr) kernels_->async_device()->follow(stream);
}

void Optimizer::Impl::require_no_step() const {
  if (!path_->under_way()) return;
  throw InvalidArgument(fmt::format("step {} is under way: step() ends it", state_->steps + 1));
}

void Optimizer::Impl::check_number(int32_t parameter) const {
  if (parameter >= 0 && parameter < static_cast<int32_t>(memory_.size())) return;
  throw InvalidArgument(fmt::format("parameter {}: expected 0 to {}", parameter, memory_.size() - 1));
}

}  // namespace muster
