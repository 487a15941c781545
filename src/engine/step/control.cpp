#include "engine/step/control.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "muster/error.h"

namespace muster::engine {

using kernels::SumOfSquares;

namespace {

PrintChoice all_parameters(size_t) { return PrintChoice::kCompareAndName; }

// A bad maximum too: on a device a rank that refuses it still makes the calls that the others make.
bool wants_norm(const StepOptions& options) {
  return options.max_grad_norm != 0 || options.grad_norm || options.parameter_stats;
}

}  // namespace

Control::Control(const Problem& problem, const Holdings& holdings, std::span<const ParameterMemory> memory,
                 const std::vector<Group>& groups, kernels::Kernels& kernels, Executor& executor, Recorder& recorder,
                 ProgramOf program)
    : problem_(problem),
      holdings_(holdings),
      memory_(memory),
      groups_(groups),
      kernels_(kernels),
      stream_(kernels.stream()),
      executor_(executor),
      recorder_(recorder),
      program_(std::move(program)),
      layout_(groups.size(), problem.parameters.size(), static_cast<size_t>(problem.ranks)),
      has_replicas_to_compare_(!problem.grad_sync && std::any_of(holdings.replicas.begin(), holdings.replicas.end(),
                                                                 [](int32_t replicas) { return replicas > 1; })) {
  if (stream_ == nullptr) return;
  const size_t parameters = problem.parameters.size();
  const size_t words = layout_.words + parameters + parameters * SumOfSquares::kWords;
  memory_of_answers_ = {kernels, static_cast<int64_t>(2 * sizeof(kernels::Verdict) + words * sizeof(int64_t) +
                                                      parameters * sizeof(int32_t))};
  verdict_ = memory_of_answers_.as<kernels::Verdict>();
  first_ = verdict_ + 1;
  words_ = reinterpret_cast<int64_t*>(first_ + 1);
  bad_ = words_ + layout_.words;
  squares_ = bad_ + parameters;
  active_ = reinterpret_cast<int32_t*>(squares_ + parameters * SumOfSquares::kWords);
}

template <typename F>
void Control::for_gradients(Gradients gradients, const std::vector<bool>& active, bool each, F f) const {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    std::vector<kernels::ValueBlock> blocks;
    for (size_t p = 0; p < active.size(); ++p) {
      // On a device absent ones are blocks too: the calls of a step must not depend on who has a gradient.
      const bool there = active[p] && holdings_.any(p) && (stream_ != nullptr || gradients[p] != nullptr);
      if (there && problem_.parameters[p].grad_dtype == dtype) blocks.push_back(shard(p, gradients[p], each));
    }
    if (!blocks.empty()) f(dtype, blocks);
  }
}

void Control::reduce(int64_t* words, size_t count, std::string_view label, const Executor::Link& link) {
  if (stream_ == nullptr) {
    link.host->all_reduce(std::span(words, count), ReduceOp::kSum, label)->wait();
  } else if (link.host->size() > 1) {
    const int64_t n = static_cast<int64_t>(count);
    stream_->add_to_key({&n, 1});
    if (!stream_->dry_run()) link.stream->all_reduce(words, n, label, stream_->main());
  }
}

// The squares of replicas that travel are summed where their average is.
void Control::add_squares(Gradients gradients, const std::vector<bool>& active, int64_t number,
                          const Executor::Link& link, bool each, int64_t* words) {
  const size_t parameters = active.size();
  std::vector<bool> travels(parameters);
  std::vector<bool> stays(parameters);
  for (size_t p = 0; p < parameters; ++p) {
    travels[p] = active[p] && averaged(p);
    stays[p] = active[p] && !travels[p] && holdings_.replica[p] == 0;
  }
  {
    const auto timed = recorder_.span(Stage::kControl);
    for_gradients(gradients, stays, each,
                  [&](Dtype dtype, const auto& blocks) { kernels_.sum_squares(dtype, blocks, words); });
  }
  if (std::find(travels.begin(), travels.end(), true) == travels.end()) return;
  const StepInput input{gradients, 1, number};
  executor_.average(program_(travels), input, link, [&](int32_t p, const float* average, int64_t count) {
    const auto timed = recorder_.span(Stage::kControl);
    const kernels::ValueBlock block{1, count, average, count, nullptr, each ? p : 0};
    kernels_.sum_squares(Dtype::kF32, {&block, 1}, words);
  });
}

// Whether the policy is to skip the step.
bool Control::screen(Gradients gradients, const std::vector<bool>& active, NonFinite policy, int64_t number,
                     Communicator& communicator) {
  std::vector<int64_t> bad(active.size());
  for_gradients(gradients, active, true,
                [&](Dtype dtype, const auto& blocks) { kernels_.find_non_finite(dtype, blocks, bad.data()); });
  const std::vector<int64_t> mine = bad;
  reduce(bad.data(), bad.size(), "finiteness", {&communicator, nullptr});
  if (std::all_of(bad.begin(), bad.end(), [](int64_t n) { return n == 0; })) return false;
  if (policy == NonFinite::kError) refuse_non_finite(question(number, communicator), bad);
  if (policy == NonFinite::kSkipStep) return true;
  for (size_t p = 0; p < active.size(); ++p) {
    if (mine[p] == 0) continue;
    const kernels::ValueBlock block = shard(p, gradients[p], false);
    kernels_.zero_non_finite(problem_.parameters[p].grad_dtype, {&block, 1});
  }
  return false;
}

void Control::add_prints(const StepQuestion& question, Gradients gradients,
                         const std::function<PrintChoice(size_t parameter)>& choose, int64_t* words) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    const std::vector<kernels::FingerprintRange> prints = gradient_prints(question, gradients, dtype, choose);
    if (prints.empty()) continue;
    kernels_.fingerprint(dtype, prints, words, static_cast<int64_t>(layout_.prints) + question.rank);
  }
}

Accord Control::settle(Gradients gradients, const StepOptions& options, int64_t number, Communicator& communicator) {
  const Executor::Link link{&communicator, nullptr};
  Accord accord;
  {
    const auto timed = recorder_.span(Stage::kControl);
    const StepQuestion asked = question(number, communicator);
    Ballots ballots = fill_in(asked, gradients, options);
    if (ballots.refusal.empty()) add_prints(asked, gradients, all_parameters, ballots.words.data());
    reduce(ballots.words.data(), ballots.words.size(), kAgreement, link);
    accord.active = count(asked, ballots.words, ballots.refusal);
    if (options.non_finite != NonFinite::kIgnore) {
      accord.skip = screen(gradients, accord.active, options.non_finite, number, communicator);
    }
  }
  if (accord.skip || !wants_norm(options)) return accord;
  const bool each = options.parameter_stats;
  std::vector<SumOfSquares> sums(each ? problem_.parameters.size() : 1);
  std::vector<int64_t> words(sums.size() * SumOfSquares::kWords);
  add_squares(gradients, accord.active, number, link, each, words.data());
  SumOfSquares total;
  {
    const auto timed = recorder_.span(Stage::kControl);
    reduce(words.data(), words.size(), "gradient norm", link);
    for (size_t i = 0; i < sums.size(); ++i) {
      std::copy_n(words.data() + i * SumOfSquares::kWords, SumOfSquares::kWords, sums[i].words().begin());
      total.merge(sums[i]);
      if (each) recorder_.stats.parameters[i].grad_norm = std::sqrt(sums[i].value()) * std::abs(options.grad_scale);
    }
  }
  const double norm = std::sqrt(total.value()) * std::abs(options.grad_scale);
  recorder_.stats.grad_norm = norm;
  // A norm that is not a number clips nothing.
  if (options.max_grad_norm > 0) accord.clip = std::min(1.0, options.max_grad_norm / (norm + kernels::kClipEps));
  recorder_.stats.clip = accord.clip;
  return accord;
}

std::vector<int64_t> Control::kind(const StepOptions& options, int64_t number) const {
  const bool skips = options.non_finite == NonFinite::kSkipStep;  // by the calls of kError
  std::vector<int64_t> out{static_cast<int64_t>(skips ? NonFinite::kError : options.non_finite),
                           static_cast<int64_t>(wants_norm(options)), static_cast<int64_t>(options.parameter_stats),
                           static_cast<int64_t>(has_replicas_to_compare_ && compares_gradients(number))};
  for (const Group& g : groups_) {
    out.insert(out.end(), {static_cast<int64_t>(number % std::max<int64_t>(g.every, 1) == 0),
                           static_cast<int64_t>(g.decay), static_cast<int64_t>(g.momentum_form),
                           static_cast<int64_t>(g.nesterov), stream_->call_pattern(g.coefficients)});
  }
  return out;
}

std::vector<bool> Control::by_schedule(int64_t number) const {
  std::vector<bool> active(problem_.parameters.size());
  for (size_t p = 0; p < active.size(); ++p)
    active[p] = number % std::max<int64_t>(groups_[memory_[p].group].every, 1) == 0;
  return active;
}

void Control::enqueue(Gradients gradients, const StepOptions& options, int64_t number, const Ballots& ballots,
                      const Executor::Link& link) {
  const size_t parameters = problem_.parameters.size();
  const std::span<int32_t> active(active_, parameters);
  stream_->upload(words_, ballots.words);
  add_prints(question(number, *link.host), gradients, all_parameters, words_);
  reduce(words_, layout_.words, kAgreement, link);
  stream_->decide(words_, static_cast<int64_t>(layout_.zeros), words_ + layout_.present, active, verdict_);
  const std::vector<bool> due = by_schedule(number);
  if (options.non_finite == NonFinite::kZero) {
    for_gradients(gradients, due, false,
                  [&](Dtype dtype, const auto& blocks) { kernels_.zero_non_finite(dtype, blocks); });
  } else if (options.non_finite != NonFinite::kIgnore) {
    stream_->clear(bad_, static_cast<int64_t>(parameters * sizeof(int64_t)));
    for_gradients(gradients, due, true,
                  [&](Dtype dtype, const auto& blocks) { kernels_.find_non_finite(dtype, blocks, bad_); });
    reduce(bad_, parameters, "finiteness", link);
    stream_->refuse({bad_, parameters}, active, verdict_);
  }
  if (!wants_norm(options)) return;
  const size_t sums = options.parameter_stats ? parameters : 1;
  const size_t words = sums * SumOfSquares::kWords;
  stream_->clear(squares_, static_cast<int64_t>(words * sizeof(int64_t)));
  add_squares(gradients, due, number, link, options.parameter_stats, squares_);
  reduce(squares_, words, "gradient norm", link);
  stream_->clip(squares_, static_cast<int64_t>(sums), options.grad_scale, options.max_grad_norm, verdict_);
}

void Control::enqueue(Gradients gradients, const Ballots& ballots, int64_t number, const WaveBallots& wave_ballots,
                      const Executor::Link& link) {
  const auto& [wave, waves, choose] = wave_ballots;
  stream_->upload(words_, ballots.words);
  add_prints(question(number, *link.host), gradients, choose, words_);
  reduce(words_, layout_.words, wave_agreement(wave), link);
  stream_->decide(words_, static_cast<int64_t>(layout_.zeros), words_ + layout_.present,
                  {active_, problem_.parameters.size()}, wave == 0 && waves > 1 ? first_ : verdict_);
}

void Control::end_step(int64_t* updates) {
  stream_->count({active_, problem_.parameters.size()}, updates);
  send();
}

void Control::send() {
  stream_->read_back(verdict_, reinterpret_cast<std::byte*>(squares_) - reinterpret_cast<std::byte*>(verdict_));
}

Control::Outcome Control::read(std::span<const std::byte> sent, const StepOptions& options, int64_t number) const {
  kernels::Verdict verdict;
  std::memcpy(&verdict, sent.data(), sizeof verdict);
  std::vector<int64_t> words(layout_.words + problem_.parameters.size());
  std::memcpy(words.data(), sent.data() + 2 * sizeof verdict, words.size() * sizeof(int64_t));
  const StepQuestion asked{problem_, holdings_, memory_, groups_, number, 0, 0, 1};
  count(asked, std::span(words).first(layout_.words), {});
  if (verdict.go == 0 && options.non_finite == NonFinite::kError) {
    refuse_non_finite(asked, std::span(words).subspan(layout_.words));
  }
  if (verdict.go == 0) return {true, 0, 1};
  return {false, verdict.norm, verdict.clip};
}

bool Control::begun(std::span<const std::byte> sent) {
  kernels::Verdict first;
  std::memcpy(&first, sent.data() + sizeof first, sizeof first);
  return first.go != 0;
}

void Control::read_norms(double grad_scale) {
  const size_t parameters = problem_.parameters.size();
  std::vector<int64_t> words(parameters * SumOfSquares::kWords);
  kernels_.read(words.data(), squares_, {1, static_cast<int64_t>(words.size() * sizeof(int64_t)), 0, 0});
  for (size_t p = 0; p < parameters; ++p) {
    SumOfSquares sum;
    std::copy_n(words.data() + p * SumOfSquares::kWords, SumOfSquares::kWords, sum.words().begin());
    recorder_.stats.parameters[p].grad_norm = std::sqrt(sum.value()) * std::abs(grad_scale);
  }
}

}  // namespace muster::engine
