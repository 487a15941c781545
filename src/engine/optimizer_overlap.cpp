// Steps of an optimizer that begin before all gradients are there.
#include <utility>

#include <fmt/format.h>

#include "engine/optimizer_impl.h"
#include "engine/step/lent.h"
#include "kernels/async_device.h"

namespace muster {

void Optimizer::Impl::begin_step(const StepOptions& options) {
  require_whole();
  require_no_step();
  if (!overlap_) throw InvalidArgument("begin_step: the optimizer was made without overlap");
  engine::check_overlap(options);
  // On a device: all ranks know what came of the last one before they enqueue anything of this.
  settle_all();
  const int64_t number = state_->steps + 1;
  recorder_.start(number, options.trace);
  if (kernels_->stream() == nullptr) {
    overlap_->begin(number, program(control_->by_schedule(number)), link_, {});
  } else {
    const std::vector<void*> none(problem_.parameters.size());
    const engine::StepQuestion question = control_->question(number, *communicator_);
    const std::string refusal = engine::fill_in(question, none, {}).refusal;
    if (refusal.empty()) agreed_ = options_.groups;
    const engine::Lent lent(options_.groups, agreed_);
    overlap_->begin(number, program(control_->by_schedule(number)), link_, refusal);
    or_break(fmt::format("step {}", number), [&] { kernels_->stream()->begin_piecewise(); });
  }
  recorder_.pause();
}

void Optimizer::Impl::ready(int32_t parameter, void* gradient) {
  require_whole();
  if (!overlap_ || !overlap_->under_way()) throw InvalidArgument("ready: no step has begun");
  check_number(parameter);
  overlap_->mark(parameter, gradient);
  recorder_.resume();
  const std::string what = fmt::format("step {}", state_->steps + 1);
  or_break(what, [&] {
    kernels::AsyncDevice* const stream = kernels_->stream();
    if (stream == nullptr) return overlap_->advance();
    if (gradient == nullptr) return;    // what was enqueued goes on by itself
    const kernels::Part part(*stream);  // also where no wave can start: one that does later waits for this gradient
    if (!overlap_->can_advance()) return;
    const kernels::Range range(*stream, what);
    const engine::Lent lent(options_.groups, agreed_);
    overlap_->advance();
  });
  recorder_.pause();
}

const StepStats& Optimizer::Impl::end_on_host(std::span<void* const> gradients, const StepOptions& options) {
  const int64_t number = state_->steps + 1;
  const std::string what = fmt::format("step {}", number);
  recorder_.resume();
  overlap_->close(gradients, options);
  try {
    overlap_->finish();
  } catch (const InvalidArgument& error) {  // on every rank, at the same point
    if (overlap_->changed()) {
      give_up(error.failure().within(what + " broke off"));
      throw InvalidArgument(broken_);
    }
    overlap_->drop();
    throw;
  } catch (...) {
    break_off(what);
  }
  for (size_t p = 0; p < problem_.parameters.size(); ++p) state_->updates()[p] += overlap_->active(p) ? 1 : 0;
  state_->steps = number;
  recorder_.finish();
  return recorder_.last_stats;
}

const StepStats& Optimizer::Impl::end_on_stream(std::span<void* const> gradients, const StepOptions& options) {
  kernels::AsyncDevice& stream = *kernels_->stream();
  const int64_t number = state_->steps + 1;
  const std::string what = fmt::format("step {}", number);
  recorder_.resume();
  const std::string refusal = overlap_->close(gradients, options);
  if (!refusal.empty() && ranks_ == 1 && !overlap_->changed()) {
    overlap_->drop();
    stream.drop_graphs();
    throw InvalidArgument(fmt::format("{}: {}", what, refusal));
  }
  or_break(what, [&] {
    const kernels::Range range(stream, what);
    const kernels::Part part(stream);
    const engine::Lent lent(options_.groups, agreed_);
    overlap_->finish();
    control_->end_step(state_->updates());
    stream.end_step();
    recorder_.stats.kernels = stream.launches();
  });
  state_->steps = number;
  under_way_.push_back({stream.step(), number, options, refusal});
  const bool refused = (!refusal.empty() || recorder_.tracing()) && settle(0);
  if (!refusal.empty()) throw InvalidArgument(broken_.empty() ? fmt::format("{}: {}", what, refusal) : broken_);
  if (!refused) recorder_.finish();
  if (!refused_.empty()) throw InvalidArgument(std::exchange(refused_, {}));
  return recorder_.last_stats;
}

}  // namespace muster
