#include "train/train.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include "muster/error.h"
#include "train/statistics.h"

namespace muster::train {
namespace {

double sum(const std::vector<int64_t>& values) {
  return static_cast<double>(std::accumulate(values.begin(), values.end(), int64_t{0}));
}

// That a checkpoint is of this training.
void check_same(const Recipe& recipe, const Corpus& corpus, const Position& position) {
  if (position.text != corpus.hash()) throw InvalidArgument("--text: the checkpoint is of another text");
  for (const RecipeField& field : recipe_fields()) {
    if (field.get(recipe) == field.get(position.recipe)) continue;
    throw InvalidArgument(
        fmt::format("--{}: {}, but the checkpoint has {}", field.name, field.get(recipe), field.get(position.recipe)));
  }
}

}  // namespace

double TrainResult::seconds() const { return sum(step_ns) / 1e9; }

double TrainResult::tokens_per_s() const {
  return step_ns.empty() ? 0 : static_cast<double>(tokens_a_step * std::ssize(step_ns)) / seconds();
}

double TrainResult::optimizer_share() const { return step_ns.empty() ? 0 : sum(optimizer_ns) / sum(step_ns); }

TrainResult train(const Recipe& recipe, const Corpus& corpus, const Execution& execution, Communicator& communicator,
                  const TrainOptions& options) {
  Trainer trainer(recipe, corpus, execution, communicator);
  Position position{.recipe = recipe, .text = corpus.hash(), .losses = {}, .held_out = {}, .state = {}};
  if (!options.resume.empty()) {
    position = read_position(options.resume);
    check_same(recipe, corpus, position);
    load(options.resume, position, trainer);
  }
  if (options.until > 0 && options.until < trainer.steps()) {
    throw InvalidArgument(
        fmt::format("--until: {}, but the checkpoint has made {} steps", options.until, trainer.steps()));
  }
  if (!options.save.empty()) make_folder(options.save, communicator);
  TrainResult result;
  result.first_step = trainer.steps();
  result.unigram_entropy = corpus.unigram_entropy();
  result.parameters = trainer.elements();
  result.tokens_a_step = recipe.batch * recipe.model.context;
  result.problem = trainer.optimizer().problem();
  result.plan = trainer.optimizer().plan();
  result.summary = summarize(result.problem, result.plan, execution.plan.cost);
  const int64_t last = options.until > 0 ? std::min(options.until, recipe.all_steps()) : recipe.all_steps();
  const auto evaluate = [&] {
    position.held_out.push_back({trainer.steps(), trainer.held_out_loss()});
    options.evaluated(position.held_out.back());
  };
  if (options.eval_every > 0 && trainer.steps() == 0) evaluate();
  while (trainer.steps() < last) {
    if (options.trace && trainer.steps() + 1 == last) trainer.trace_next();
    const TrainedStep step = trainer.step();
    position.losses.push_back(step.loss);
    result.step_ns.push_back(step.total_ns);
    result.optimizer_ns.push_back(step.optimizer_ns);
    options.progress(trainer.steps(), step);
    if (options.eval_every > 0 && trainer.steps() % options.eval_every == 0) evaluate();
    const bool due = options.save_every > 0 && trainer.steps() % options.save_every == 0 && trainer.steps() < last;
    if (due && !options.save.empty()) save(options.save, position, trainer, communicator);
  }
  if (!options.save.empty()) save(options.save, position, trainer, communicator);
  if (options.trace && !result.step_ns.empty())
    result.timelines = run::gather_timelines(communicator, trainer.timeline());
  result.losses = std::move(position.losses);
  const bool evaluated = !position.held_out.empty() && position.held_out.back().step == trainer.steps();
  if (!evaluated) {
    const bool curve = options.eval_every > 0 || !position.held_out.empty();
    const HeldOut end{trainer.steps(), trainer.held_out_loss()};
    if (curve) options.evaluated(end);
    position.held_out.push_back(end);
  }
  result.final_loss = position.held_out.back().loss;
  if (options.eval_every > 0 || position.held_out.size() > 1) result.held_out = std::move(position.held_out);
  return result;
}

std::vector<HeldOutSpread> held_out_spread(std::span<const TrainResult> runs) {
  std::map<int64_t, std::vector<double>> losses;
  for (const TrainResult& run : runs) {
    for (const HeldOut& one : run.held_out) losses[one.step].push_back(one.loss);
  }
  std::vector<HeldOutSpread> spread;
  for (const auto& [step, values] : losses) {
    if (values.size() == runs.size()) spread.push_back({step, mean(values), standard_deviation(values)});
  }
  return spread;
}

}  // namespace muster::train
