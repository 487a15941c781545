#include "engine/step/host_step.h"

#include "muster/error.h"

namespace muster::engine {

const StepStats& HostStep::step(const StepRequest& request) {
  const std::string what = title(request.number);
  timer().start(request.number, request.options.trace);
  if (request.options.parameter_stats) timer().stats.parameters.resize(parameters());
  const ControlReduction::Decision decision = or_refuse(what, [&] { return control_.agree(request); });
  timer().stats.skipped = decision.skip;
  if (!decision.skip) {
    or_break(what, [&] { compute(request, decision); });
    settle_rules(what);
  }
  context_.state.steps = request.number;
  timer().finish();
  return timer().last_stats;
}

void HostStep::compute(const StepRequest& request, const ControlReduction::Decision& decision) {
  ParameterStatsCollector* const stats = request.options.parameter_stats ? &parameter_stats_ : nullptr;
  if (stats != nullptr) stats->start();
  const StepInput input{.program = &context_.programs.of(decision.active),
                        .gradients = request.gradients,
                        .groups = request.groups,
                        .grad_scale = request.options.grad_scale * decision.clip,
                        .number = request.number,
                        .row_factors = request.options.row_factors,
                        .stats = stats,
                        .non_finite = request.options.non_finite};
  executor_.start(input);
  pipeline_.run();
  scale_rows_of_others(input, [&] { return decision.active; });
  if (stats != nullptr) {
    const auto timed = timer().time(Stage::kControl);
    stats->add_weights(context_.holdings, context_.memory);
    stats->report(*context_.link.host, title(request.number) + " statistics", timer().stats.parameters);
  }
  count_updates([&](size_t p) { return decision.active[p]; });
}

void HostStep::begin(const StepRequest& request) {
  timer().start(request.number, request.options.trace);
  keep(request.groups);
  readiness_->begin(early_request(request), {});
  executor_.start(readiness_->input());
  pipeline_.begin(*readiness_, pipeline_.in_flight());
  timer().pause();
}

void HostStep::ready(int32_t parameter, void* gradient) {
  readiness_->mark(parameter, gradient);
  timer().resume();
  or_break(title(readiness_->input().number), [&] { pipeline_.advance(); });
  timer().pause();
}

const StepStats& HostStep::finish(const StepRequest& request) {
  const std::string what = title(request.number);
  timer().resume();
  readiness_->close(request);
  try {
    pipeline_.finish();
  } catch (const InvalidArgument& error) {  // on every rank, at the same stage
    if (pipeline_.started()) {  // some waves have changed weights; later calls throw CommError with this reason
      give_up(error.failure().within(what + " broke off"));
      throw InvalidArgument(status_.reason());
    }
    pipeline_.drop();
    throw;
  } catch (...) {
    break_off(what);
  }
  settle_rules(what);
  or_break(what, [&] {
    scale_rows_of_others(readiness_->input(), [&] {
      std::vector<bool> active(parameters());
      for (size_t p = 0; p < active.size(); ++p) active[p] = readiness_->took_part(p);
      return active;
    });
  });
  count_updates([&](size_t p) { return readiness_->took_part(p); });
  context_.state.steps = request.number;
  timer().finish();
  return timer().last_stats;
}

double HostStep::grad_norm(const StepRequest& request) {
  timer().start(request.number, false);
  const std::string what = fmt::format("the gradient norm before step {}", request.number);
  or_refuse(what, [&] { return control_.agree(request); });
  return timer().stats.grad_norm;
}

template <typename TookPart>
void HostStep::count_updates(TookPart took_part) {
  int64_t* const updates = context_.state.updates();
  for (size_t p = 0; p < parameters(); ++p) updates[p] += took_part(p) ? 1 : 0;
}

}  // namespace muster::engine
