#include "engine/step/overlap.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "engine/step/hyperparameters.h"
#include "muster/error.h"

namespace muster::engine {

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

Overlap::Overlap(const plan::Catalog& catalog, const Plan& plan, const Holdings& holdings,
                 const std::vector<Group>& groups, Control& control, Executor& executor, Recorder& recorder)
    : catalog_(catalog),
      holdings_(holdings),
      groups_(groups),
      control_(control),
      executor_(executor),
      recorder_(recorder),
      waves_of_(catalog.problem().parameters.size()) {
  for (int32_t j = 0; j < catalog.matrix_count(); ++j) {
    waves_of_[catalog.parameter_of(j)].push_back(static_cast<size_t>(plan.wave[j]));
  }
  for (std::vector<size_t>& waves : waves_of_) {
    if (waves.empty()) waves.push_back(plan.waves.size() - 1);  // AdamW and Lion
    std::sort(waves.begin(), waves.end());
    waves.erase(std::unique(waves.begin(), waves.end()), waves.end());
  }
}

void Overlap::begin(int64_t number, const Program& program, const Executor::Link& link, std::string refusal) {
  const size_t parameters = waves_of_.size();
  due_ = control_.by_schedule(number);
  program_ = &program;
  link_ = link;
  gradients_.assign(parameters, nullptr);
  ready_.assign(parameters, false);
  active_.assign(parameters, 0);
  const bool on_device = control_.on_device();
  input_ = {gradients_, 1, number, on_device ? control_.active() : active_.data(), nullptr, nullptr};
  missing_.assign(program.waves.size(), 0);
  for (size_t p = 0; p < parameters; ++p) {
    for (const size_t w : waves_of_[p]) missing_[w] += due_[p] && holdings_.any(p) ? 1 : 0;
  }
  groups_were_.clear();
  for (const Group& group : groups_) groups_were_.push_back(fingerprint(group));
  // A device's messages through host memory wait for whoever sends them, and ready() must not.
  const bool alone = link.host->size() == 1;
  may_start_ = !on_device || alone || link.host->on_stream() != nullptr;
  all_here_ = settled_ = false;
  started_ = 0;
  refusal_ = std::move(refusal);
  refused_.clear();
  executor_.start(program);
  line_up(program.waves.size(), on_device && alone ? 0 : 1);
}

// Wave w + 1 travels while w computes, and w - 1 returns; or where nothing travels, one is done with after the other.
void Overlap::line_up(size_t waves, size_t behind) {
  stages_.clear();
  at_ = 0;
  for (size_t w = 0; w < waves + 2 * behind; ++w) {
    if (w < waves) stages_.insert(stages_.end(), {{Kind::kAsk, w}, {Kind::kAgree, w}, {Kind::kStart, w}});
    if (w >= behind && w - behind < waves) stages_.push_back({Kind::kCompute, w - behind});
    if (w >= 2 * behind) stages_.push_back({Kind::kFinish, w - 2 * behind});
  }
}

void Overlap::mark(int32_t parameter, void* gradient) {
  const auto p = static_cast<size_t>(parameter);
  if (!due_[p] || gradient == nullptr) return;
  if (ready_[p]) {
    refusal_ = fmt::format("parameter '{}': its gradient is ready twice in one step", name(p));
    throw InvalidArgument(fmt::format("step {}: {}", input_.step, refusal_));
  }
  ready_[p] = true;
  gradients_[p] = gradient;
  if (!holdings_.any(p)) return;
  for (const size_t w : waves_of_[p]) --missing_[w];
}

void Overlap::advance() {
  executor_.poll();
  while (can_advance()) {
    try {
      carry_out(stages_[at_]);
    } catch (const InvalidArgument& error) {  // all ranks know, and step() says so
      refused_ = error.failure();
      return;
    }
    ++at_;
  }
}

bool Overlap::possible(const Stage& stage) {
  const bool last = stage.wave + 1 == program_->waves.size();
  switch (stage.kind) {
    case Kind::kAsk:
      return settled_ || all_here_ || (may_start_ && missing_[stage.wave] == 0 && !last && refusal_.empty());
    case Kind::kAgree:
      return asked_ == nullptr || asked_->test();
    case Kind::kStart:
      return true;
    case Kind::kCompute:
      return executor_.arrived(stage.wave);
    case Kind::kFinish:
      return executor_.returned(stage.wave);
  }
  throw Internal("unknown stage");
}

void Overlap::carry_out(const Stage& stage) {
  const size_t w = stage.wave;
  switch (stage.kind) {
    case Kind::kAsk:
      return ask(w);
    case Kind::kAgree:
      return agree(w);
    case Kind::kStart:
      ++started_;
      if (!all_here_) ++recorder_.stats.early_waves;
      return executor_.start_in(run(), w);
    case Kind::kCompute:
      executor_.compute(run(), w);
      return executor_.start_out(run(), w);
    case Kind::kFinish:
      return executor_.finish(run(), w);
  }
}

// The ballots of a whole step, with the gradients that are here by now, and one word more: how many ranks have all. On
// a device, instead, without what is of later waves: others may not have it yet.
void Overlap::ask(size_t wave) {
  if (settled_) return;
  const auto timed = recorder_.span(muster::Stage::kControl, static_cast<int32_t>(wave));
  const StepQuestion question = control_.question(input_.step, *link_.host);
  ballots_ = fill_in(question, gradients_, {}, refusal_);
  // On a device a wave's words replace those of the waves before, so they have the prints of all of them.
  const bool device = control_.on_device();
  const auto prints = [&](size_t p) {
    const bool asked_now = device ? waves_of_[p][0] <= wave : waves_of_[p][0] == wave;
    if (asked_now) return PrintChoice::kCompareAndName;
    return all_here_ && !device && waves_of_[p][0] > wave ? PrintChoice::kCompare : PrintChoice::kSkip;
  };
  if (control_.on_device()) {
    const BallotLayout layout(groups_.size(), waves_of_.size(), static_cast<size_t>(question.problem.ranks));
    for (size_t p = 0; p < waves_of_.size(); ++p) {
      if (waves_of_[p][0] <= wave) continue;
      ballots_.words[layout.replicas + p] = 0;
      ballots_.words[layout.present + p] = 0;
    }
    return control_.enqueue(gradients_, ballots_, input_.step, {wave, program_->waves.size(), prints}, link_);
  }
  if (ballots_.refusal.empty()) control_.add_prints(question, gradients_, prints, ballots_.words.data());
  ballots_.words.push_back(all_here_ ? 1 : 0);
  asked_ = link_.host->all_reduce(std::span<int64_t>(ballots_.words), ReduceOp::kSum, wave_agreement(wave));
}

void Overlap::agree(size_t wave) {
  if (asked_ == nullptr) return;
  const auto timed = recorder_.span(muster::Stage::kControl, static_cast<int32_t>(wave));
  asked_->wait();
  asked_.reset();
  settled_ = ballots_.words.back() == link_.host->size();
  ballots_.words.pop_back();
  const StepQuestion question = control_.question(input_.step, *link_.host);
  const BallotLayout layout(groups_.size(), waves_of_.size(), static_cast<size_t>(question.problem.ranks));
  const auto open = [&](size_t p) { return !settled_ && waves_of_[p][0] > wave; };
  for (size_t p = 0; p < waves_of_.size(); ++p) {
    if (open(p)) ballots_.words[layout.replicas + p] = 0;  // replicas are not done with it
  }
  const std::vector<bool> present = count(question, ballots_.words, ballots_.refusal);
  for (size_t p = 0; p < waves_of_.size(); ++p) {
    if (!open(p)) active_[p] = present[p] ? 1 : 0;
  }
}

std::string Overlap::refusal(Gradients gradients, const StepOptions& options) const {
  try {
    check_overlap(options);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  if (gradients.size() != gradients_.size()) {
    return fmt::format("{} gradients, expected {}", gradients.size(), gradients_.size());
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (fingerprint(groups_[g]) == groups_were_[g]) continue;
    return fmt::format("group {}: its hyperparameters have changed since the step began, and waves with them", g);
  }
  for (size_t p = 0; p < gradients.size(); ++p) {
    if (gradients_[p] == nullptr || gradients[p] != nullptr) continue;
    return fmt::format("parameter '{}': its gradient was ready, and is gone", name(p));
  }
  return {};
}

const std::string& Overlap::close(Gradients gradients, const StepOptions& options) {
  if (refusal_.empty()) refusal_ = refusal(gradients, options);
  for (size_t p = 0; p < gradients_.size() && refusal_.empty(); ++p) {
    if (gradients_[p] == nullptr) gradients_[p] = gradients[p];
  }
  all_here_ = true;
  return refusal_;
}

void Overlap::finish() {
  for (; at_ < stages_.size() && refused_.empty(); ++at_) carry_out(stages_[at_]);
  if (!refused_.empty()) throw InvalidArgument(refused_);
  drop();
}

void Overlap::drop() {
  asked_.reset();
  stages_.clear();
}

}  // namespace muster::engine
