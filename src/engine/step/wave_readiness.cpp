#include "engine/step/wave_readiness.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "engine/step/hyperparameters.h"
#include "muster/error.h"

namespace muster::engine {

namespace {

std::vector<std::vector<size_t>> waves_by_parameter(const plan::Catalog& catalog, const Plan& plan) {
  std::vector<std::vector<size_t>> waves_of(catalog.problem().parameters.size());
  for (int32_t j = 0; j < catalog.matrix_count(); ++j) {
    waves_of[catalog.parameter_of(j)].push_back(static_cast<size_t>(plan.wave[j]));
  }
  for (std::vector<size_t>& waves : waves_of) {
    if (waves.empty()) waves.push_back(plan.waves.size() - 1);  // AdamW and Lion
    std::sort(waves.begin(), waves.end());
    waves.erase(std::unique(waves.begin(), waves.end()), waves.end());
  }
  return waves_of;
}

}  // namespace

void check_overlap(const StepOptions& options) {
  const auto refuse = [](std::string_view what, std::string_view why) {
    throw InvalidArgument(fmt::format("overlap: not with {}: {}, and waves start before that", what, why));
  };
  if (options.max_grad_norm != 0) refuse("clipping", "it needs the norm of all gradients");
  if (options.grad_norm || options.parameter_stats) refuse("norms", "they need all gradients as they were");
  if (options.non_finite != NonFinite::kIgnore) {
    refuse("a policy for non-finite gradients", "it looks at all of them before anything is changed");
  }
  if (options.grad_scale != 1) refuse("a scale of the gradients", "whether it overflowed is known after backward");
}

WaveReadiness::WaveReadiness(const StepContext& context, ControlReduction& control)
    : context_(context), control_(control), waves_of_(waves_by_parameter(context.catalog, context.plan)) {}

void WaveReadiness::begin(const StepRequest& request, StepStatus own) {
  const size_t parameters = waves_of_.size();
  gradients_.assign(parameters, nullptr);
  ready_.assign(parameters, false);
  active_.assign(parameters, 0);
  due_ = parameters_due(request.groups, context_.memory, request.number);
  request_ = {.number = request.number, .gradients = gradients_, .groups = request.groups};
  request_.options.row_factors = request.options.row_factors;
  input_ = {.program = &context_.programs.of(due_),
            .gradients = gradients_,
            .groups = request.groups,
            .number = request.number,
            .active = on_device() ? control_.active() : active_.data(),
            .row_factors = request.options.row_factors,
            .sitting = on_device() ? control_.sitting() : nullptr};
  missing_.assign(input_.program->waves.size(), 0);
  for (size_t p = 0; p < parameters; ++p) {
    if (!due_[p] || !context_.holdings.any(p)) continue;
    for (const size_t w : waves_of_[p]) ++missing_[w];
  }
  may_start_early_ = !context_.link.waits_for_peers();  // ready() must not wait
  closed_ = false;
  settled_ = false;
  own_ = std::move(own);
}

void WaveReadiness::mark(int32_t parameter, void* gradient) {
  const auto p = static_cast<size_t>(parameter);
  if (!due_[p] || gradient == nullptr) return;
  if (ready_[p]) {
    own_ = StepStatus::refusal(fmt::format("parameter '{}': its gradient is ready twice in one step", name(p)));
    throw InvalidArgument(own_.reason.within(fmt::format("step {}", request_.number)));
  }
  ready_[p] = true;
  gradients_[p] = gradient;
  if (!context_.holdings.any(p)) return;
  for (const size_t w : waves_of_[p]) --missing_[w];
}

const StepStatus& WaveReadiness::close(const StepRequest& request) {
  if (!own_.refused()) own_ = status_of(request);
  for (size_t p = 0; p < gradients_.size() && !own_.refused(); ++p) {
    if (gradients_[p] == nullptr) gradients_[p] = request.gradients[p];
  }
  closed_ = true;
  return own_;
}

StepStatus WaveReadiness::status_of(const StepRequest& request) const {
  try {
    check_overlap(request.options);
  } catch (const InvalidArgument& error) {
    return StepStatus::refusal(error.failure());
  }
  if (request.gradients.size() != gradients_.size()) {
    return StepStatus::refusal(fmt::format("{} gradients, expected {}", request.gradients.size(), gradients_.size()));
  }
  const std::span<const float> factors = request.options.row_factors;
  if (!factors.empty() && factors.data() != request_.options.row_factors.data()) {
    return StepStatus::refusal("row_factors: not those that the step began with; give them to begin_step()");
  }
  for (size_t g = 0; g < request.groups.size(); ++g) {
    if (fingerprint(request.groups[g]) == fingerprint(request_.groups[g])) continue;
    return StepStatus::refusal(
        fmt::format("group {}: its hyperparameters have changed since the step began, and waves with them", g));
  }
  for (size_t p = 0; p < gradients_.size(); ++p) {
    if (gradients_[p] == nullptr || request.gradients[p] != nullptr) continue;
    return StepStatus::refusal(fmt::format("parameter '{}': its gradient was ready, and is gone", name(p)));
  }
  return {};
}

bool WaveReadiness::ready(size_t wave) const {
  if (settled_ || closed_) return true;
  const bool last = wave + 1 == input_.program->waves.size();
  return may_start_early_ && missing_[wave] == 0 && !last && !own_.refused();
}

void WaveReadiness::ask(size_t wave) {
  if (settled_) return;
  const auto timed = context_.timer.time(Stage::kControl, static_cast<int32_t>(wave));
  words_ = control_words(context_, request_, own_);
  const auto choose = [&](size_t p) { return compare(p, wave); };
  if (on_device()) {
    const ControlLayout layout = control_layout(context_.problem, request_.groups.size());
    for (size_t p = 0; p < waves_of_.size(); ++p) {
      if (!later(p, wave)) continue;
      words_.words[layout.replicas + p] = 0;
      words_.words[layout.present + p] = 0;
    }
    return control_.enqueue(request_, words_, {wave, input_.program->waves.size(), choose});
  }
  if (!words_.status.refused()) control_.add_fingerprints(request_, choose, words_.words.data());
  words_.words.push_back(closed_ ? 1 : 0);  // in the sum: how many ranks have called step()
  asked_ = context_.link.host->all_reduce(std::span<int64_t>(words_.words), ReduceOp::kSum, wave_agreement(wave));
}

// On a device a wave's words replace those of earlier waves, so they have the fingerprints of all of them.
Compare WaveReadiness::compare(size_t parameter, size_t wave) const {
  const size_t first = waves_of_[parameter][0];
  if (on_device()) return first <= wave ? Compare::kReplicasNamed : Compare::kNo;
  if (first == wave) return Compare::kReplicasNamed;
  return closed_ && first > wave ? Compare::kReplicas : Compare::kNo;
}

void WaveReadiness::agree(size_t wave) {
  if (asked_ == nullptr) return;
  const auto timed = context_.timer.time(Stage::kControl, static_cast<int32_t>(wave));
  asked_->wait();
  asked_.reset();
  std::vector<int64_t>& sums = words_.words;
  settled_ = sums.back() == context_.link.host->size();
  sums.pop_back();
  const ControlLayout layout = control_layout(context_.problem, request_.groups.size());
  const auto open = [&](size_t p) { return !settled_ && later(p, wave); };
  for (size_t p = 0; p < waves_of_.size(); ++p) {
    if (open(p)) sums[layout.replicas + p] = 0;  // some replicas may not have it yet
  }
  const std::vector<bool> present = decide(context_, request_.number, sums, words_.status);
  for (size_t p = 0; p < waves_of_.size(); ++p) {
    if (!open(p)) active_[p] = present[p] ? 1 : 0;
  }
}

}  // namespace muster::engine
