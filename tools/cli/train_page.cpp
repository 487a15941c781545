#include "train_page.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "base/file.h"
#include "base/json.h"
#include "base/read_file.h"
#include "muster/error.h"
#include "plan_others.h"
#include "plan_text/text.h"
#include "traced_ranks.h"

namespace muster::cli {
namespace {

using report::Curve;
using report::Figure;
using train::TrainResult;

std::vector<double> steps_from(int64_t first, size_t count) {
  std::vector<double> x(count);
  std::iota(x.begin(), x.end(), static_cast<double>(first));
  return x;
}

std::vector<double> milliseconds(const std::vector<int64_t>& ns) {
  std::vector<double> out;
  for (const int64_t value : ns) out.push_back(static_cast<double>(value) / 1e6);
  return out;
}

std::string run_name(const TrainOutcome& outcome, size_t run) {
  const std::string name = training_name(outcome);
  return outcome.runs.size() == 1 ? name : fmt::format("{}, seed {}", name, outcome.recipe.seed + run);
}

report::CurveChart loss_chart(const TrainOutcome& outcome) {
  report::CurveChart chart{.title = "Loss", .x_label = "step", .y_label = "nats a token"};
  for (const OtherTraining& other : outcome.beside) {
    chart.curves.push_back({other.name, steps_from(1, other.losses.size()), other.losses});
  }
  for (size_t i = 0; i < outcome.runs.size(); ++i) {
    const std::vector<double>& losses = outcome.runs[i].losses;
    chart.curves.push_back({run_name(outcome, i), steps_from(1, losses.size()), losses});
  }
  chart.marks.push_back({"guessing by frequency", outcome.runs.front().unigram_entropy});
  if (outcome.target) chart.marks.push_back({"target", *outcome.target});
  return chart;
}

report::CurveChart time_chart(const TrainResult& run) {
  const std::vector<double> steps = steps_from(run.first_step + 1, run.step_ns.size());
  return {.title = "Time of a step",
          .x_label = "step",
          .y_label = "ms",
          .curves = {{"whole step", steps, milliseconds(run.step_ns)},
                     {"optimizer", steps, milliseconds(run.optimizer_ns)}}};
}

std::vector<Figure> facts(const TrainOutcome& outcome) {
  const TrainResult& run = outcome.runs.front();
  Figure loss = Figure::number("final_loss", "held-out loss", run.final_loss);
  loss.note = "nats a token";
  Figure entropy = Figure::number("unigram_entropy", "guessing by frequency", run.unigram_entropy);
  entropy.note = "what no context at all would cost";
  Figure steps = Figure::count("steps", "steps", std::ssize(run.losses));
  steps.note = fmt::format("of {} tokens", plan_text::grouped_text(run.tokens_a_step));
  std::vector<Figure> all{loss,
                          entropy,
                          steps,
                          Figure::count("parameters", "weights", run.parameters),
                          Figure::count("tokens_per_s", "tokens a second", std::llround(run.tokens_per_s())),
                          Figure::share("optimizer_share", "optimizer's share of a step", run.optimizer_share())};
  if (!outcome.beside.empty()) {
    Figure same = Figure::yes_no("same_losses", "same losses", outcome.same_losses());
    same.note = fmt::format("bit for bit, in all {} trainings", outcome.beside.size() + 1);
    all.insert(all.begin(), same);
  }
  return all;
}

}  // namespace

OtherTraining read_training(const std::string& file) {
  const std::string where = base::path_text(file) + " is not what `muster train --json` prints";
  const base::Json json = base::parse_json(base::read_file(file), where);
  const auto is = [&](const char* key, auto type) {
    return json.is_object() && json.contains(key) && (json.at(key).*type)();
  };
  if (!is("losses", &base::Json::is_array) || !is("mesh", &base::Json::is_string) ||
      !is("strategy", &base::Json::is_string) || !std::ranges::all_of(json["losses"], &base::Json::is_number)) {
    throw InvalidArgument(where);
  }
  return {fmt::format("{}, {} ({})", json["mesh"].get<std::string>(), json["strategy"].get<std::string>(),
                      std::filesystem::path(file).stem().string()),
          json["losses"].get<std::vector<double>>()};
}

std::vector<report::TracedStep> traced_steps(const TrainOutcome& outcome) {
  return traced_ranks(std::string(name(outcome.execution.plan.strategy)), outcome.runs.front().timelines);
}

report::Page train_page(const TrainOutcome& outcome) {
  const TrainResult& run = outcome.runs.front();
  const PlanOptions& plan = outcome.execution.plan;
  report::Page page = plan_page_with_others(
      {.problem = run.problem, .plan = run.plan, .summary = run.summary, .cost = plan.cost}, plan);
  page.title = fmt::format("A small GPT learns on {} rank{}", run.problem.ranks, run.problem.ranks == 1 ? "" : "s");
  page.subtitle = fmt::format("{} · {}", training_words(outcome), page.subtitle);
  page.facts = facts(outcome);
  page.charts = {loss_chart(outcome)};
  if (!run.step_ns.empty()) page.charts.push_back(time_chart(run));
  page.timelines = traced_steps(outcome);
  page.timelines_note = "The last step, as it was recorded.";
  return page;
}

}  // namespace muster::cli
