#include "engine/step/control_words.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "base/hash.h"
#include "engine/step/differing_ranks.h"
#include "engine/step/equality_check.h"
#include "engine/step/hyperparameters.h"
#include "muster/error.h"

namespace muster::engine {

namespace {

constexpr const char* kSomeHaveNone = "some replicas have a gradient and some have none";

constexpr size_t kRefused = ControlLayout::kRefused;
constexpr size_t kStepCheck = ControlLayout::kStepCheck;
constexpr size_t kFixedWords = ControlLayout::kFixedWords;

uint64_t step_fingerprint(const StepRequest& request, int64_t seed) {
  const StepOptions& options = request.options;
  base::Hash hash;
  hash.add(request.number);
  hash.add(seed);
  hash.add(static_cast<int64_t>(request.captured));
  hash.add(options.grad_scale);
  hash.add(options.max_grad_norm);
  hash.add(static_cast<int64_t>(options.non_finite));
  hash.add(static_cast<int64_t>(options.grad_norm));
  hash.add(static_cast<int64_t>(options.parameter_stats));
  hash.add(static_cast<int64_t>(options.row_factors.size()));
  return hash.value();
}

// Throws InvalidArgument for what this rank can see by itself.
void check(const StepContext& context, const StepRequest& request) {
  const size_t parameters = context.problem.parameters.size();
  if (request.gradients.size() != parameters) {
    throw InvalidArgument(fmt::format("{} gradients, expected {}", request.gradients.size(), parameters));
  }
  const StepOptions& options = request.options;
  if (!std::isfinite(options.grad_scale)) {
    throw InvalidArgument(fmt::format("grad_scale {}: expected a finite number", options.grad_scale));
  }
  if (!(options.max_grad_norm >= 0)) {
    throw InvalidArgument(fmt::format("max_grad_norm {}: expected at least 0", options.max_grad_norm));
  }
  check_row_factors(context.row_scalings, options.row_factors, context.device == nullptr);
  for (size_t g = 0; g < request.groups.size(); ++g) {
    try {
      validate(request.groups[g]);
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(fmt::format("group {}: {}", g, error.what()));
    }
  }
}

// Why the replicas of a parameter do not agree. A rank's fingerprint covers all its gradients that are compared, so two
// ranks' can be compared only if they store the same of all those parameters.
Failure different_gradients(const Problem& problem, size_t parameter, std::span<const int64_t> fingerprints) {
  std::vector<int32_t> first = first_replicas(problem, problem.parameters[parameter]);
  for (const Parameter& other : problem.parameters) {
    const std::vector<int32_t> theirs = first_replicas(problem, other);
    const bool compared = std::find(theirs.begin(), theirs.end(), -1) != theirs.end() ||
                          std::set(theirs.begin(), theirs.end()).size() < theirs.size();
    for (size_t rank = 0; compared && rank < first.size(); ++rank) {
      if (first[rank] >= 0 && theirs[rank] != theirs[first[rank]]) first[rank] = -1;
    }
  }
  for (size_t rank = 0; rank < first.size(); ++rank) {
    if (first[rank] >= 0 && (fingerprints[rank] == 0) != (fingerprints[first[rank]] == 0)) return kSomeHaveNone;
  }
  return {"its replicas have different gradients" + differing(first, fingerprints), ErrorCode::kReplicaGradientsDiffer,
          problem.parameters[parameter].name};
}

}  // namespace

ControlLayout control_layout(const Problem& problem, size_t groups) {
  return {groups, problem.parameters.size(), static_cast<size_t>(problem.ranks)};
}

std::string wave_agreement(size_t wave) { return fmt::format("agreement on wave {} of a step", wave); }

ControlWords control_words(const StepContext& context, const StepRequest& request, const StepStatus& known) {
  const Problem& problem = context.problem;
  const Holdings& holdings = context.holdings;
  const ControlLayout layout = control_layout(problem, request.groups.size());
  ControlWords out{std::vector<int64_t>(layout.words), known};
  try {
    if (!known.refused()) check(context, request);
  } catch (const InvalidArgument& error) {
    out.status = StepStatus::refusal(error.failure());
  }
  std::vector<int64_t>& words = out.words;
  words[kRefused] = out.status.refused() ? 1 : 0;
  words[layout.steps + static_cast<size_t>(holdings.rank)] = request.number * 2 + words[kRefused];
  const auto from_this_rank = [&](uint64_t value) { return contribution(value, holdings.rank, problem.ranks); };
  words[kStepCheck] = from_this_rank(step_fingerprint(request, context.state.seed));
  for (size_t g = 0; g < request.groups.size(); ++g) {
    words[kFixedWords + g] = from_this_rank(fingerprint(request.groups[g]));
  }
  if (out.status.refused()) return out;
  if (context.device == nullptr && !request.options.row_factors.empty()) {  // on a device, its kernels do this
    base::Hash factors;
    for (const float factor : request.options.row_factors) factors.add(static_cast<double>(factor));
    words[ControlLayout::kRowFactors] = from_this_rank(factors.value());
  }
  for (size_t p = 0; p < problem.parameters.size(); ++p) {
    const bool due = takes_part(request.groups[context.memory[p].group], request.number);
    if (!due || !holdings.any(p) || request.gradients[p] == nullptr) continue;
    words[layout.present + p] = 1;
    if (problem.grad_sync) continue;  // each replica has a gradient of its own
    words[layout.replicas + p] = contribution(holdings.shard_keys[p], holdings.replica[p], holdings.replicas[p]);
  }
  return out;
}

std::vector<kernels::FingerprintRange> gradient_fingerprints(const StepContext& context, const StepRequest& request,
                                                             Dtype dtype, const ChooseParameters& choose) {
  const Problem& problem = context.problem;
  const Holdings& holdings = context.holdings;
  std::vector<kernels::FingerprintRange> out;
  if (problem.grad_sync || !compares_gradients(request.number)) return out;
  const ControlLayout layout = control_layout(problem, request.groups.size());
  for (size_t p = 0; p < problem.parameters.size(); ++p) {
    const bool due = takes_part(request.groups[context.memory[p].group], request.number);
    const bool here = holdings.any(p) && holdings.replicas[p] > 1 && problem.parameters[p].grad_dtype == dtype;
    const Compare choice = choose(p);
    if (!due || !here || choice == Compare::kNo) continue;
    out.push_back({.count = holdings.elements[p],
                   .data = request.gradients[p],
                   .word = static_cast<int64_t>(layout.replicas + p),
                   .factor = static_cast<uint64_t>(contribution(1, holdings.replica[p], holdings.replicas[p])),
                   .total_factor = choice == Compare::kReplicasNamed ? 2 * p + 1 : 0});
  }
  return out;
}

std::vector<bool> decide(const StepContext& context, int64_t step, std::span<const int64_t> sums,
                         const StepStatus& own) {
  const Problem& problem = context.problem;
  const size_t parameters = problem.parameters.size();
  const auto ranks = static_cast<size_t>(problem.ranks);
  const size_t groups = sums.size() - control_layout(problem, 0).words;
  const ControlLayout layout = control_layout(problem, groups);
  if (own.refused()) throw InvalidArgument(own.reason.within(fmt::format("step {}", step)));
  const auto steps = sums.subspan(layout.steps, ranks);
  if (sums[kRefused] > 0) {
    std::vector<int64_t> refused(steps.begin(), steps.end());
    for (int64_t& word : refused) word %= 2;
    throw InvalidArgument(fmt::format("step {}: {} refused it", step, named(ranks_with(refused, 1))));
  }
  if (sums[kStepCheck] != 0 && std::any_of(steps.begin(), steps.end(), [&](int64_t s) { return s != steps[0]; })) {
    throw InvalidArgument(
        fmt::format("step {}: ranks disagree on the number of steps done: {}; load the same state on all", step,
                    by_value(steps, [](int64_t word) { return word / 2 - 1; })));
  }
  if (sums[kStepCheck] != 0) {
    throw InvalidArgument(
        fmt::format("step {}: ranks disagree on its options (grad_scale, max_grad_norm, non_finite, grad_norm, "
                    "parameter_stats, row_factors, the seed or, where steps are captured, trace)",
                    step));
  }
  if (sums[ControlLayout::kBadRowFactors] != 0) {
    throw InvalidArgument(
        fmt::format("step {}: row_factors: not finite on {} of the ranks", step, sums[ControlLayout::kBadRowFactors]));
  }
  if (sums[ControlLayout::kRowFactors] != 0) {
    throw InvalidArgument(fmt::format("step {}: ranks disagree on its row_factors", step));
  }
  for (size_t g = 0; g < groups; ++g) {
    if (sums[kFixedWords + g] == 0) continue;
    throw InvalidArgument(fmt::format("step {}: ranks disagree on the hyperparameters of group {}", step, g));
  }
  const auto fingerprints = sums.subspan(layout.fingerprints, ranks);
  for (size_t p = 0; p < parameters; ++p) {
    if (sums[layout.replicas + p] == 0) continue;
    const bool all_or_none = sums[layout.present + p] % context.holdings.replicas[p] == 0;
    const Failure why =
        compares_gradients(step) && all_or_none ? different_gradients(problem, p, fingerprints) : kSomeHaveNone;
    throw InvalidArgument(why.within(fmt::format("step {}: parameter '{}'", step, problem.parameters[p].name)));
  }
  std::vector<bool> active(parameters);
  for (size_t p = 0; p < parameters; ++p) active[p] = sums[layout.present + p] > 0;
  return active;
}

void refuse_non_finite(const Problem& problem, int64_t step, std::span<const int64_t> ranks_with_bad) {
  const auto first = std::find_if(ranks_with_bad.begin(), ranks_with_bad.end(), [](int64_t n) { return n > 0; });
  throw InvalidArgument(fmt::format("step {}: parameter '{}': its gradient is not finite on {} of the ranks", step,
                                    problem.parameters[first - ranks_with_bad.begin()].name, *first));
}

}  // namespace muster::engine
