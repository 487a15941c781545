#include "train_output.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "plan_text/text.h"
#include "run/bench.h"
#include "train/statistics.h"

namespace muster::cli {
namespace {

using Json = nlohmann::ordered_json;
using train::TrainResult;

std::string field(const train::Recipe& recipe, std::string_view name) {
  for (const train::RecipeField& f : train::recipe_fields()) {
    if (f.name == name) return f.get(recipe);
  }
  return {};
}

// JSON has no NaN.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(); }

Json held_out_json(const TrainResult& run) {
  Json list = Json::array();
  for (const train::HeldOut& one : run.held_out) list.push_back({{"step", one.step}, {"loss", one.loss}});
  return list;
}

Json run_json(const TrainResult& run) {
  return {{"losses", run.losses},
          {"held_out", held_out_json(run)},
          {"final_loss", run.final_loss},
          {"unigram_entropy", run.unigram_entropy},
          {"tokens_per_s", run.tokens_per_s()},
          {"optimizer_share", run.optimizer_share()},
          {"seconds", run.seconds()},
          {"step_ms", static_cast<double>(run::median(run.step_ns)) / 1e6},
          {"optimizer_ms", static_cast<double>(run::median(run.optimizer_ns)) / 1e6},
          {"first_step", run.first_step}};
}

Json plan_json(const TrainResult& run) {
  return {{"waves", run.plan.waves.size()},
          {"collectives", run.summary.collectives},
          {"bytes_sent_max", run.summary.bytes_sent_max},
          {"padding_bytes", run.summary.padding_bytes},
          {"scratch_bytes_max", run.summary.scratch_bytes_max},
          {"predicted_ms", static_cast<double>(run.summary.predicted_ns) / 1e6},
          {"hash", plan_text::hash_text(run.plan.hash)}};
}

}  // namespace

std::vector<double> TrainOutcome::final_losses() const {
  std::vector<double> out;
  for (const TrainResult& run : runs) out.push_back(run.final_loss);
  return out;
}

std::vector<double> TrainOutcome::seconds() const {
  std::vector<double> out;
  for (const TrainResult& run : runs) out.push_back(run.seconds());
  return out;
}

bool TrainOutcome::same_losses() const {
  return std::ranges::all_of(beside, [&](const OtherTraining& other) { return other.losses == runs.front().losses; });
}

TrainingCost training_cost(const TrainResult& run) {
  return {.step_ns = run::median(run.step_ns),
          .optimizer_ns = run::median(run.optimizer_ns),
          .collectives = run.summary.collectives,
          .bytes_sent_max = run.summary.bytes_sent_max,
          .padding_bytes = run.summary.padding_bytes};
}

std::string training_name(const TrainOutcome& outcome) {
  return fmt::format("{}, {}", outcome.mesh, name(outcome.execution.plan.strategy));
}

std::string training_words(const TrainOutcome& outcome) {
  const train::ModelConfig& model = outcome.recipe.model;
  return fmt::format("{} of width {}, {}, {} per sequence; {} in {}", plan_text::counted_text(model.layers, "layer"),
                     model.width, plan_text::counted_text(model.heads, "head"),
                     plan_text::counted_text(model.context, "token"), field(outcome.recipe, "optimizer"),
                     field(outcome.recipe, "dtype"));
}

std::string train_heading(const TrainOutcome& outcome) {
  return fmt::format("{}; {}, {} ({}), {} each\n\n", training_words(outcome), name(outcome.execution.plan.strategy),
                     outcome.mesh, outcome.comm, plan_text::counted_text(outcome.execution.threads, "thread"));
}

std::string train_line(int64_t step, double loss, double tokens_per_s, double optimizer_share) {
  return fmt::format("step {:>5}  loss {:.4f}  {:>7} tokens/s  optimizer {}\n", step, loss,
                     plan_text::grouped_text(std::llround(tokens_per_s)), plan_text::percent_text(optimizer_share));
}

std::string train_ending(const TrainResult& result) {
  return fmt::format(
      "\nheld-out loss {:.4f} nats per token; guessing by frequency costs {:.4f}\n{:.1f} s in steps, {} tokens/s, "
      "optimizer {}\n",
      result.final_loss, result.unigram_entropy, result.seconds(),
      plan_text::grouped_text(std::llround(result.tokens_per_s())), plan_text::percent_text(result.optimizer_share()));
}

std::string train_statistics(const TrainOutcome& outcome) {
  const std::vector<double> losses = outcome.final_losses();
  const std::vector<double> seconds = outcome.seconds();
  const auto spread = [](const std::vector<double>& values, int digits) {
    return values.size() < 2 ? ""
                             : fmt::format(" (standard deviation {:.{}f})", train::standard_deviation(values), digits);
  };
  std::string out =
      fmt::format("\n{}: loss {:.4f}{}; time {:.2f} s{}\n", plan_text::counted_text(std::ssize(losses), "run"),
                  train::mean(losses), spread(losses, 4), train::mean(seconds), spread(seconds, 2));
  if (outcome.target) {
    out += fmt::format("t-test, loss below {}: p = {:.4g}\n", *outcome.target, train::p_below(losses, *outcome.target));
  }
  return out;
}

std::string train_comparison(const TrainOutcome& outcome) {
  std::string out;
  for (const OtherTraining& other : outcome.beside) {
    const std::vector<double>& mine = outcome.runs.front().losses;
    const auto [here, there] = std::ranges::mismatch(mine, other.losses);
    const bool same = here == mine.end() && there == other.losses.end();
    out += fmt::format(
        "compared with {}: {}\n", other.name,
        same ? "the same losses, bit for bit" : fmt::format("other losses from step {} on", here - mine.begin() + 1));
  }
  return out;
}

std::string train_json(const TrainOutcome& outcome) {
  const TrainResult& first = outcome.runs.front();
  Json recipe = Json::object();
  for (const train::RecipeField& f : train::recipe_fields()) recipe[std::string(f.name)] = f.get(outcome.recipe);
  Json json = run_json(first);
  json.update({{"parameters", first.parameters},
               {"tokens_a_step", first.tokens_a_step},
               {"mesh", outcome.mesh},
               {"comm", outcome.comm},
               {"threads", outcome.execution.threads},
               {"strategy", name(outcome.execution.plan.strategy)},
               {"plan", plan_json(first)},
               {"recipe", std::move(recipe)}});
  if (!outcome.beside.empty()) json["same_losses"] = outcome.same_losses();
  if (outcome.several) {
    const std::vector<double> losses = outcome.final_losses();
    const std::vector<double> seconds = outcome.seconds();
    json["mean"] = number(train::mean(losses));
    json["std"] = number(train::standard_deviation(losses));
    json["p"] = outcome.target ? number(train::p_below(losses, *outcome.target)) : Json();
    json["target"] = outcome.target ? Json(*outcome.target) : Json();
    json["time_mean"] = number(train::mean(seconds));
    json["time_std"] = number(train::standard_deviation(seconds));
    json["held_out_mean"] = Json::array();
    for (const train::HeldOutSpread& at : train::held_out_spread(outcome.runs)) {
      json["held_out_mean"].push_back({{"step", at.step}, {"mean", number(at.mean)}, {"std", number(at.deviation)}});
    }
    json["runs"] = Json::array();
    for (const TrainResult& run : outcome.runs) json["runs"].push_back(run_json(run));
  }
  return json.dump(2) + "\n";
}

}  // namespace muster::cli
