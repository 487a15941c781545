#include "engine/step/step_path.h"

#include <algorithm>
#include <utility>

#include "engine/step/device_step.h"
#include "engine/step/fail_together.h"
#include "engine/step/host_step.h"

namespace muster::engine {

StepPath::StepPath(const StepContext& context, const OptimizerOptions& options, OptimizerStatus& status)
    : context_(context),
      status_(status),
      snapshot_(options.groups),
      executor_(context, {.momentum = options.momentum, .scratch_cap = context.plan.scratch_cap, .groups = snapshot_}),
      parameter_stats_(context.catalog, context.kernels),
      control_(context, executor_, options.groups.size()),
      pipeline_(executor_, context.timer, context.plan) {
  if (options.overlap) readiness_.emplace(context, control_);
}

std::unique_ptr<StepPath> make_step_path(const StepContext& context, const OptimizerOptions& options,
                                         OptimizerStatus& status) {
  if (context.device == nullptr) return std::make_unique<HostStep>(context, options, status);
  return std::make_unique<DeviceStep>(context, options, status);
}

template <typename Work>
void StepPath::with_others(const StepInput& step, const Active& active, Work work) {
  if (step.row_factors.empty()) return;
  const std::vector<bool> others = context_.row_scalings.without(active());
  if (std::find(others.begin(), others.end(), true) == others.end()) return;
  StepInput input = step;
  input.program = &context_.programs.of(others);
  input.stats = nullptr;
  work(input, others);
}

void StepPath::scale_rows_of_others(const StepInput& step, const Active& active) {
  with_others(step, active, [&](const StepInput& input, const std::vector<bool>& parameters) {
    executor_.scale_rows(input, parameters);
  });
}

void StepPath::count_traffic_of_others(const StepInput& step, const Active& active) {
  with_others(step, active, [&](const StepInput& input, const std::vector<bool>& parameters) {
    executor_.count_row_traffic(input, parameters);
  });
}

void StepPath::drop() {
  pipeline_.drop();
  executor_.abandon();
}

void StepPath::give_up(Failure why) {
  status_.break_off(std::move(why));
  try {
    drop();
  } catch (const DeviceError&) {  // this error broke the step
  }
}

void StepPath::settle_rules(const std::string& what) {
  if (context_.rules.empty()) return;  // on all ranks: they agreed on the rules
  const WaveExecutor::RuleError mine = executor_.rule_error();
  const std::string first = or_break(what, [&] {
    return failure_of_any(*context_.link.host, what + " rules", [&] {
      if (mine.original != nullptr) throw Error(mine.text);
    });
  });
  if (first.empty()) return;
  give_up(fmt::format("{} broke off: {}", what, first));
  if (mine.original != nullptr) std::rethrow_exception(mine.original);
  throw CommError(status_.reason());
}

void StepPath::break_off(std::string_view what) {
  try {
    throw;
  } catch (const CommError& error) {
    give_up(error.failure().within(fmt::format("{} broke off", what)));
    throw CommError(status_.reason());
  } catch (const std::exception& error) {
    const std::string why = fmt::format("{} broke off: {}", what, error.what());
    context_.link.host->abort(why);  // first: giving up waits for what is under way
    give_up(why);
    throw;
  }
}

}  // namespace muster::engine
