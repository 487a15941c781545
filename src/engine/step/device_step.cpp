#include "engine/step/device_step.h"

#include <algorithm>
#include <span>
#include <utility>

#include "engine/step/hyperparameters.h"
#include "muster/error.h"

namespace muster::engine {

DeviceStep::DeviceStep(const StepContext& context, const OptimizerOptions& options, OptimizerStatus& status)
    : StepPath(context, options, status),
      device_(*context.device),
      graph_(options.graph),
      no_gradients_(context.problem.parameters.size()) {}

const StepStats& DeviceStep::step(const StepRequest& request) {
  const StepOptions& options = request.options;
  settle_until(kernels::AsyncDevice::kStepsInFlight - 1);
  const std::string what = title(request.number);
  drop_stale_graphs(what);
  timer().start(request.number, options.trace);
  StepRequest asked = request;
  asked.captured = graph_ && !options.trace && !options.parameter_stats && !context_.link.waits_for_peers();
  const Prepared step = prepare(asked);
  const StepStatus& own = step.words.status;
  if (own.refused() && context_.link.alone()) refuse(what, own);
  keep(step.request.groups);
  or_break(what, [&] { enqueue(step); });
  context_.state.steps = request.number;
  submitted_.push_back({device_.step(), request.number, options, own});
  if (own.refused()) refuse(what, own);
  if (options.parameter_stats) timer().stats.parameters.resize(parameters());
  const bool looks = options.grad_norm || options.parameter_stats || options.trace;
  const bool refused = (looks || options.non_finite == NonFinite::kError) && settle_until(0);
  if (options.parameter_stats && !timer().stats.skipped) {
    or_break(what, [&] {
      control_.read_norms(options.grad_scale);
      parameter_stats_.report(*context_.link.host, what + " statistics", timer().stats.parameters);
    });
  }
  return report(refused);
}

const StepStats& DeviceStep::report(bool refused) {
  if (!refused) timer().finish();
  // Last, because the rank that refused has thrown before.
  status_.report_refusals();
  return timer().last_stats;
}

DeviceStep::Prepared DeviceStep::prepare(const StepRequest& request) {
  Prepared step{control_words(context_, request), request};
  if (!step.refuses()) return step;
  step.request.gradients = no_gradients_;  // the others wait for this rank's words, and then change nothing
  // The last hyperparameters that all ranks agreed on: the calls of a step must not depend on what one of them refuses.
  if (!all_valid(request.groups)) step.request.groups = snapshot_;
  step.request.options.row_factors = as_many(request.options.row_factors);
  return step;
}

// Factors for the same calls as on other ranks, if this rank refuses its own for their number.
std::span<const float> DeviceStep::as_many(std::span<const float> factors) const {
  const bool usable = factors.empty() || std::ssize(factors) >= context_.row_scalings.factors();
  return usable ? factors : context_.row_scalings.unread_factors();
}

template <typename Calls>
void DeviceStep::make_calls(const StepRequest& request, Calls calls) {
  do {
    device_.begin_step(request.captured);
    calls();
  } while (!device_.end_step());
}

void DeviceStep::enqueue(const Prepared& step) {
  const StepRequest& request = step.request;
  const bool stats = request.options.parameter_stats;
  const kernels::Range range(device_, title(request.number));
  make_calls(request, [&] {
    timer().restart(request.number);
    device_.add_to_key(control_.key(request));
    if (stats && !device_.dry_run()) parameter_stats_.start();
    control_.enqueue(request, step.words);
    const StepInput input = input_of(request);
    executor_.start(input);
    const auto due = [&] { return parameters_due(request.groups, context_.memory, request.number); };
    const auto waves = [&] {
      pipeline_.run();
      scale_rows_of_others(input, due);
    };
    if (!device_.memoize(executor_.inputs(), waves)) {
      executor_.count_traffic();
      count_traffic_of_others(input, due);
    }
    if (stats) parameter_stats_.add_weights(context_.holdings, context_.memory);
    control_.end_step();
  });
  timer().stats.kernels = device_.launches();
  timer().stats.replayed = device_.replayed();
}

StepInput DeviceStep::input_of(const StepRequest& request) {
  const std::vector<bool> due = parameters_due(request.groups, context_.memory, request.number);
  return {.program = &context_.programs.of(due),
          .gradients = request.gradients,
          .groups = request.groups,
          .grad_scale = request.options.grad_scale,
          .number = request.number,
          .active = control_.active(),
          .clip = control_.clip(),
          .row_factors = request.options.row_factors,
          .sitting = control_.sitting(),
          .stats = request.options.parameter_stats ? &parameter_stats_ : nullptr};
}

void DeviceStep::begin(const StepRequest& request) {
  settle();  // ranks know what the last step came to before they enqueue anything of this one
  status_.require_whole();
  timer().start(request.number, request.options.trace);
  StepRequest nothing_yet{.number = request.number, .gradients = no_gradients_, .groups = request.groups};
  nothing_yet.options.row_factors = request.options.row_factors;
  StepStatus own = control_words(context_, nothing_yet).status;
  if (!own.refused()) keep(request.groups);
  StepRequest early = early_request(request);
  early.options.row_factors = as_many(early.options.row_factors);
  readiness_->begin(early, std::move(own));
  executor_.start(readiness_->input());
  pipeline_.begin(*readiness_, context_.link.alone() ? 0 : pipeline_.in_flight());
  or_break(title(request.number), [&] { device_.begin_piecewise(); });
  timer().pause();
}

void DeviceStep::ready(int32_t parameter, void* gradient) {
  readiness_->mark(parameter, gradient);
  timer().resume();
  const std::string what = title(readiness_->input().number);
  or_break(what, [&] {
    if (gradient == nullptr) return;    // the device goes on by itself
    const kernels::Part part(device_);  // even if no wave can start: one that does later waits for this gradient
    if (!pipeline_.can_advance()) return;
    const kernels::Range range(device_, what);
    pipeline_.advance();
  });
  timer().pause();
}

const StepStats& DeviceStep::finish(const StepRequest& request) {
  const std::string what = title(request.number);
  timer().resume();
  const StepStatus own = readiness_->close(request);
  if (own.refused() && context_.link.alone() && !pipeline_.started()) {
    pipeline_.drop();
    device_.drop_graphs();
    refuse(what, own);
  }
  or_break(what, [&] {
    const kernels::Range range(device_, what);
    const kernels::Part part(device_);
    pipeline_.finish();
    const StepInput& input = readiness_->input();
    scale_rows_of_others(input, [&] { return parameters_due(input.groups, context_.memory, input.number); });
    control_.end_step();
    device_.end_step();
    timer().stats.kernels = device_.launches();
  });
  context_.state.steps = request.number;
  submitted_.push_back({device_.step(), request.number, request.options, own});
  const bool refused = (own.refused() || timer().tracing()) && settle_until(0);
  if (own.refused() && status_.broken()) throw InvalidArgument(status_.reason());
  if (own.refused()) refuse(what, own);
  return report(refused);
}

double DeviceStep::grad_norm(const StepRequest& request) {
  const std::string what = fmt::format("the gradient norm before step {}", request.number);
  timer().start(request.number, false);
  settle();
  const Prepared step = prepare(request);
  or_break(what, [&] {
    make_calls(step.request, [&] {
      control_.enqueue(step.request, step.words);
      control_.send();
    });
    context_.link.stream->watch([&] { return device_.done(device_.step()); }, what);
  });
  if (step.refuses()) refuse(title(request.number), step.words.status);
  return control_.read(device_.read_back_of(device_.step()), request.number, request.options.non_finite).norm;
}

// Reserves for a step in which all parameters take part, however few do in the first: a rank whose table grew later
// would capture its steps again while others replay theirs.
void DeviceStep::reserve(std::span<const Group> groups) {
  StepRequest all{.number = 0, .gradients = no_gradients_, .groups = groups};  // the turn of every group
  all.options.max_grad_norm = 1;
  all.options.non_finite = NonFinite::kError;
  all.options.parameter_stats = true;
  all.options.row_factors = context_.row_scalings.unread_factors();
  const ControlWords words = control_words(context_, all);
  timer().start(0, false);
  device_.reserve_table([&] {
    control_.enqueue(all, words);
    executor_.start(input_of(all));
    pipeline_.run();
    parameter_stats_.add_weights(context_.holdings, context_.memory);
    control_.end_step();
  });
}

bool DeviceStep::settle_until(size_t in_flight) {
  bool refused = false;
  while (submitted_.size() > in_flight) refused = settle_oldest();
  return refused;
}

bool DeviceStep::settle_oldest() {
  const Submitted step = submitted_.front();
  const std::string what = title(step.number);
  or_break(what, [&] { context_.link.stream->watch([&] { return device_.done(step.device_step); }, what); });
  submitted_.pop_front();
  const std::span<const std::byte> sent = device_.read_back_of(step.device_step);
  const bool told = step.own.refused();
  Failure why = told ? step.own.reason.within(what) : Failure();
  ControlReduction::Outcome outcome{.skipped = true};
  try {
    if (!told) outcome = control_.read(sent, step.number, step.options.non_finite);
  } catch (const InvalidArgument& error) {
    why = error.failure();
  }
  const bool refused = !why.empty();
  // Ranks that disagreed may have captured different steps. By then all of them know.
  if (refused && !context_.link.alone()) {
    recapture_at_ = std::min(recapture_at_, step.device_step + kernels::AsyncDevice::kStepsInFlight);
  }
  if (refused && ControlReduction::began(sent)) {  // some waves changed weights, and some did not
    why = why.within(what + " broke off");
    give_up(why);
  }
  if (refused && !told) status_.add_refusal(why);
  StepStats& stats = timer().stats.step == step.number ? timer().stats : timer().last_stats;
  if (stats.step != step.number) return refused;
  stats.skipped = outcome.skipped;
  stats.grad_norm = outcome.norm;
  stats.clip = outcome.clip;
  return refused;
}

void DeviceStep::drop_stale_graphs(std::string_view what) {
  if (device_.step() + 1 < recapture_at_) return;
  settle();
  or_break(what, [&] { device_.drop_graphs(); });
  recapture_at_ = kNever;
}

void DeviceStep::drop() {
  submitted_.clear();
  recapture_at_ = kNever;
  StepPath::drop();
  device_.drop_graphs();
}

void DeviceStep::refuse(std::string_view what, const StepStatus& own) {
  throw InvalidArgument(own.reason.within(std::string(what)));
}

}  // namespace muster::engine
