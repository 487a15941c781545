#include "engine/step/control_reduction.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/step/equality_check.h"
#include "engine/step/hyperparameters.h"
#include "muster/error.h"

namespace muster::engine {

using kernels::SumOfSquares;

namespace {

constexpr size_t kSumWords = SumOfSquares::kWords;

Compare all_parameters(size_t) { return Compare::kReplicasNamed; }

// True also for a bad maximum: on a device a rank that refuses it still makes the calls that the others make.
bool wants_norm(const StepOptions& options) {
  return options.max_grad_norm != 0 || options.grad_norm || options.parameter_stats;
}

SumOfSquares sum_at(const std::vector<int64_t>& words, size_t index) {
  SumOfSquares sum;
  std::copy_n(words.data() + index * kSumWords, kSumWords, sum.words().begin());
  return sum;
}

double norm_of(const SumOfSquares& sum, double grad_scale) { return std::sqrt(sum.value()) * std::abs(grad_scale); }

}  // namespace

ControlReduction::ControlReduction(const StepContext& context, WaveExecutor& executor, size_t groups)
    : context_(context),
      executor_(executor),
      layout_(control_layout(context.problem, groups)),
      has_replicas_to_compare_(!context.problem.grad_sync &&
                               std::any_of(context.holdings.replicas.begin(), context.holdings.replicas.end(),
                                           [](int32_t replicas) { return replicas > 1; })) {
  if (context.device == nullptr) return;
  const size_t parameters = context.problem.parameters.size();
  const size_t words = layout_.words + parameters + parameters * kSumWords;
  answers_ = {context.kernels, static_cast<int64_t>(2 * sizeof(kernels::Verdict) + words * sizeof(int64_t) +
                                                    2 * parameters * sizeof(int32_t))};
  verdict_ = answers_.as<kernels::Verdict>();
  first_verdict_ = verdict_ + 1;
  words_ = reinterpret_cast<int64_t*>(first_verdict_ + 1);
  non_finite_ = words_ + layout_.words;
  squares_ = non_finite_ + parameters;
  active_ = reinterpret_cast<int32_t*>(squares_ + parameters * kSumWords);
  sitting_ = active_ + parameters;
}

ControlReduction::Decision ControlReduction::agree(const StepRequest& request) {
  Decision decision;
  {
    const auto timed = context_.timer.time(Stage::kControl);
    ControlWords mine = control_words(context_, request);
    if (!mine.status.refused()) add_fingerprints(request, all_parameters, mine.words.data());
    reduce(mine.words.data(), mine.words.size(), kAgreement);
    decision.active = decide(context_, request.number, mine.words, mine.status);
    if (request.options.non_finite != NonFinite::kIgnore) decision.skip = screen(request, decision.active);
  }
  if (decision.skip || !wants_norm(request.options)) return decision;
  StepStats& stats = context_.timer.stats;
  const bool per_parameter = request.options.parameter_stats;
  const size_t sums = per_parameter ? context_.problem.parameters.size() : 1;
  std::vector<int64_t> words(sums * kSumWords);
  add_squares(request, decision.active, words.data());
  SumOfSquares total;
  {
    const auto timed = context_.timer.time(Stage::kControl);
    reduce(words.data(), words.size(), "gradient norm");
    for (size_t i = 0; i < sums; ++i) {
      const SumOfSquares sum = sum_at(words, i);
      total.merge(sum);
      if (per_parameter) stats.parameters[i].grad_norm = norm_of(sum, request.options.grad_scale);
    }
  }
  const double norm = norm_of(total, request.options.grad_scale);
  const double most = request.options.max_grad_norm;
  stats.grad_norm = norm;
  // A norm that is not a number clips nothing.
  if (most > 0) decision.clip = std::min(1.0, most / (norm + kernels::kClipEps));
  stats.clip = decision.clip;
  return decision;
}

void ControlReduction::enqueue(const StepRequest& request, const ControlWords& words) {
  kernels::AsyncDevice& device = *context_.device;
  const StepOptions& options = request.options;
  const size_t parameters = context_.problem.parameters.size();
  device.upload(words_, words.words);
  add_fingerprints(request, all_parameters, words_);
  add_row_factors(options.row_factors);
  reduce(words_, layout_.words, kAgreement);
  decide_on_device(verdict_);
  const std::vector<bool> due = parameters_due(request.groups, context_.memory, request.number);
  if (options.non_finite == NonFinite::kZero) {
    for_gradients(request.gradients, due, SumPer::kStep,
                  [&](Dtype dtype, const auto& blocks) { context_.kernels.zero_non_finite(dtype, blocks); });
  } else if (options.non_finite != NonFinite::kIgnore) {
    device.clear(non_finite_, static_cast<int64_t>(parameters * sizeof(int64_t)));
    for_gradients(request.gradients, due, SumPer::kParameter, [&](Dtype dtype, const auto& blocks) {
      context_.kernels.find_non_finite(dtype, blocks, non_finite_);
    });
    reduce(non_finite_, parameters, "finiteness");
    const auto count = static_cast<int64_t>(parameters);
    device.refuse({.words = non_finite_,
                   .count = count,
                   .active = active_,
                   .sitting = sitting_,
                   .parameters = count,
                   .verdict = verdict_});
  }
  if (!wants_norm(options)) return;
  const size_t sums = options.parameter_stats ? parameters : 1;
  const size_t sum_words = sums * kSumWords;
  device.clear(squares_, static_cast<int64_t>(sum_words * sizeof(int64_t)));
  add_squares(request, due, squares_);
  reduce(squares_, sum_words, "gradient norm");
  device.clip({.words = squares_,
               .sums = static_cast<int64_t>(sums),
               .grad_scale = options.grad_scale,
               .max_norm = options.max_grad_norm,
               .verdict = verdict_});
}

void ControlReduction::enqueue(const StepRequest& request, const ControlWords& words, const Wave& wave) {
  context_.device->upload(words_, words.words);
  add_fingerprints(request, wave.compare, words_);
  add_row_factors(request.options.row_factors);
  reduce(words_, layout_.words, wave_agreement(wave.wave));
  const bool first_of_several = wave.wave == 0 && wave.waves > 1;
  decide_on_device(first_of_several ? first_verdict_ : verdict_);
}

void ControlReduction::decide_on_device(kernels::Verdict* verdict) {
  context_.device->decide({.words = words_,
                           .zeros = static_cast<int64_t>(layout_.zeros),
                           .present = words_ + layout_.present,
                           .active = active_,
                           .sitting = sitting_,
                           .parameters = std::ssize(context_.problem.parameters),
                           .verdict = verdict});
}

void ControlReduction::add_row_factors(std::span<const float> factors) {
  if (factors.empty()) return;
  const auto count = static_cast<int64_t>(factors.size());
  const kernels::FingerprintRange range{
      .count = count,
      .data = factors.data(),
      .word = ControlLayout::kRowFactors,
      .factor = static_cast<uint64_t>(contribution(1, context_.holdings.rank, context_.problem.ranks))};
  context_.kernels.fingerprint(Dtype::kF32, {&range, 1}, words_, ControlLayout::kRowFactors);
  const kernels::ValueBlock block{
      .rows = 1, .columns = count, .data = factors.data(), .stride = count, .number = ControlLayout::kBadRowFactors};
  context_.kernels.find_non_finite(Dtype::kF32, {&block, 1}, words_);
}

void ControlReduction::add_fingerprints(const StepRequest& request, const ChooseParameters& choose, int64_t* words) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    const std::vector<kernels::FingerprintRange> ranges = gradient_fingerprints(context_, request, dtype, choose);
    if (ranges.empty()) continue;
    context_.kernels.fingerprint(dtype, ranges, words,
                                 static_cast<int64_t>(layout_.fingerprints) + context_.holdings.rank);
  }
}

void ControlReduction::reduce(int64_t* words, size_t count, std::string_view label) {
  const Link& link = context_.link;
  if (context_.device == nullptr) {
    link.host->all_reduce(std::span(words, count), ReduceOp::kSum, label)->wait();
  } else if (!link.alone()) {
    const auto n = static_cast<int64_t>(count);
    context_.device->add_to_key({&n, 1});
    if (!context_.device->dry_run()) link.stream->all_reduce(words, n, label, context_.device->main());
  }
}

bool ControlReduction::screen(const StepRequest& request, const std::vector<bool>& active) {
  std::vector<int64_t> found(active.size());
  for_gradients(request.gradients, active, SumPer::kParameter, [&](Dtype dtype, const auto& blocks) {
    context_.kernels.find_non_finite(dtype, blocks, found.data());
  });
  const std::vector<int64_t> mine = found;
  reduce(found.data(), found.size(), "finiteness");
  if (std::all_of(found.begin(), found.end(), [](int64_t n) { return n == 0; })) return false;
  const NonFinite policy = request.options.non_finite;
  if (policy == NonFinite::kError) refuse_non_finite(context_.problem, request.number, found);
  if (policy == NonFinite::kSkipStep) return true;
  for (size_t p = 0; p < active.size(); ++p) {
    if (mine[p] == 0) continue;
    const kernels::ValueBlock block = shard(p, request.gradients[p], SumPer::kStep);
    context_.kernels.zero_non_finite(context_.problem.parameters[p].grad_dtype, {&block, 1});
  }
  return false;
}

// The squares of replicas that travel are summed where their average is.
void ControlReduction::add_squares(const StepRequest& request, const std::vector<bool>& active, int64_t* sums) {
  const size_t parameters = active.size();
  const SumPer per = request.options.parameter_stats ? SumPer::kParameter : SumPer::kStep;
  std::vector<bool> travels(parameters);
  std::vector<bool> stays(parameters);
  for (size_t p = 0; p < parameters; ++p) {
    travels[p] = active[p] && averaged(p);
    stays[p] = active[p] && !travels[p] && context_.holdings.replica[p] == 0;
  }
  {
    const auto timed = context_.timer.time(Stage::kControl);
    for_gradients(request.gradients, stays, per,
                  [&](Dtype dtype, const auto& blocks) { context_.kernels.sum_squares(dtype, blocks, sums); });
  }
  if (std::find(travels.begin(), travels.end(), true) == travels.end()) return;
  const StepInput input{.program = &context_.programs.of(travels),
                        .gradients = request.gradients,
                        .groups = request.groups,
                        .number = request.number};
  executor_.average(input, [&](int32_t p, const float* average, int64_t count) {
    const auto timed = context_.timer.time(Stage::kControl);
    const kernels::ValueBlock block{
        .rows = 1, .columns = count, .data = average, .stride = count, .number = per == SumPer::kParameter ? p : 0};
    context_.kernels.sum_squares(Dtype::kF32, {&block, 1}, sums);
  });
}

kernels::ValueBlock ControlReduction::shard(size_t p, const void* gradient, SumPer sum) const {
  const int64_t elements = context_.holdings.elements[p];
  return {.rows = 1,
          .columns = elements,
          .data = gradient,
          .stride = elements,
          .active = active_ == nullptr ? nullptr : active_ + p,
          .number = sum == SumPer::kParameter ? static_cast<int64_t>(p) : 0};
}

template <typename Work>
void ControlReduction::for_gradients(Gradients gradients, const std::vector<bool>& active, SumPer sum,
                                     Work work) const {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    std::vector<kernels::ValueBlock> blocks;
    for (size_t p = 0; p < active.size(); ++p) {
      // On a device absent gradients are blocks, too: the calls of a step must not depend on who has a gradient.
      const bool there = context_.device != nullptr || gradients[p] != nullptr;
      if (!active[p] || !context_.holdings.any(p) || !there) continue;
      if (context_.problem.parameters[p].grad_dtype == dtype) blocks.push_back(shard(p, gradients[p], sum));
    }
    if (!blocks.empty()) work(dtype, blocks);
  }
}

std::vector<int64_t> ControlReduction::key(const StepRequest& request) const {
  const StepOptions& options = request.options;
  const bool skips = options.non_finite == NonFinite::kSkipStep;  // makes the calls of kError
  std::vector<int64_t> out{static_cast<int64_t>(skips ? NonFinite::kError : options.non_finite),
                           static_cast<int64_t>(wants_norm(options)), static_cast<int64_t>(options.parameter_stats),
                           static_cast<int64_t>(options.row_factors.size()),
                           static_cast<int64_t>(has_replicas_to_compare_ && compares_gradients(request.number))};
  for (const Group& g : request.groups) {
    out.insert(out.end(), {static_cast<int64_t>(takes_part(g, request.number)), static_cast<int64_t>(g.decay),
                           static_cast<int64_t>(g.momentum_form), static_cast<int64_t>(g.nesterov),
                           context_.device->call_pattern(g.coefficients)});
  }
  return out;
}

void ControlReduction::end_step() {
  context_.device->count(
      {.active = active_, .parameters = std::ssize(context_.problem.parameters), .updates = context_.state.updates()});
  send();
}

void ControlReduction::send() {
  context_.device->read_back(verdict_, reinterpret_cast<std::byte*>(squares_) - reinterpret_cast<std::byte*>(verdict_));
}

ControlReduction::Outcome ControlReduction::read(std::span<const std::byte> sent, int64_t step,
                                                 NonFinite policy) const {
  kernels::Verdict verdict;
  std::memcpy(&verdict, sent.data(), sizeof verdict);
  std::vector<int64_t> words(layout_.words + context_.problem.parameters.size());
  std::memcpy(words.data(), sent.data() + 2 * sizeof verdict, words.size() * sizeof(int64_t));
  decide(context_, step, std::span(words).first(layout_.words));
  if (verdict.go != 0) return {.skipped = false, .norm = verdict.norm, .clip = verdict.clip};
  if (policy == NonFinite::kError) refuse_non_finite(context_.problem, step, std::span(words).subspan(layout_.words));
  return {.skipped = true};
}

bool ControlReduction::began(std::span<const std::byte> sent) {
  kernels::Verdict first;
  std::memcpy(&first, sent.data() + sizeof first, sizeof first);
  return first.go != 0;
}

void ControlReduction::read_norms(double grad_scale) {
  std::vector<ParameterStats>& parameters = context_.timer.stats.parameters;
  std::vector<int64_t> words(context_.problem.parameters.size() * kSumWords);
  context_.kernels.read(words.data(), squares_, {1, static_cast<int64_t>(words.size() * sizeof(int64_t)), 0, 0});
  for (size_t p = 0; p < context_.problem.parameters.size(); ++p) {
    parameters[p].grad_norm = norm_of(sum_at(words, p), grad_scale);
  }
}

}  // namespace muster::engine
