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
#include "report/findings.h"
#include "traced_ranks.h"
#include "train/statistics.h"

namespace muster::cli {
namespace {

using report::Curve;
using report::Figure;
using report::Source;
using train::TrainResult;

Figure measured(const Figure& figure) { return figure.from(Source::kMeasured); }

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
  report::CurveChart chart{.title = "Loss", .x_label = "step", .y_label = "nats per token"};
  for (const OtherTraining& other : outcome.beside) {
    chart.curves.push_back({other.name, steps_from(1, other.losses.size()), other.losses});
  }
  for (size_t i = 0; i < outcome.runs.size(); ++i) {
    const std::vector<double>& losses = outcome.runs[i].losses;
    chart.curves.push_back({run_name(outcome, i), steps_from(1, losses.size()), losses});
  }
  chart.marks.push_back({"guessing by frequency", outcome.runs.front().unigram_entropy});
  if (outcome.target) chart.marks.push_back({"target", *outcome.target});
  chart.source = Source::kMeasured;
  return chart;
}

// A training loses most at its start, and an axis that shows this hides the band: the axis fits the last three
// quarters.
void fit_band(report::CurveChart& chart, const std::vector<train::HeldOutSpread>& spread) {
  chart.lead = "The band is one standard deviation to either side of the mean.";
  const auto last = spread.back().step;
  const auto from = std::ranges::find_if(spread, [&](const auto& at) { return 4 * at.step >= last; });
  if (spread.end() - from < 2 || from == spread.begin()) return;
  chart.fit_from = static_cast<double>(from->step);
  chart.lead += fmt::format(" The axis fits the losses from step {} on; the table has the others, too.", from->step);
}

// Of several runs, the mean and how far they are apart.
report::CurveChart held_out_chart(const TrainOutcome& outcome) {
  report::CurveChart chart{.title = "Held-out loss", .x_label = "step", .y_label = "nats per token"};
  const bool several = outcome.runs.size() > 1;
  Curve curve{.name = several ? fmt::format("mean of {} runs ± standard deviation", outcome.runs.size())
                              : training_name(outcome)};
  const std::vector<train::HeldOutSpread> spread = train::held_out_spread(outcome.runs);
  for (const train::HeldOutSpread& at : spread) {
    curve.x.push_back(static_cast<double>(at.step));
    curve.y.push_back(at.mean);
    if (!several) continue;
    curve.low.push_back(at.mean - at.deviation);
    curve.high.push_back(at.mean + at.deviation);
  }
  if (several) fit_band(chart, spread);
  chart.curves.push_back(std::move(curve));
  if (outcome.target) chart.marks.push_back({"target", *outcome.target});
  chart.source = Source::kMeasured;
  return chart;
}

report::CurveChart time_chart(const TrainResult& run) {
  const std::vector<double> steps = steps_from(run.first_step + 1, run.step_ns.size());
  return {.title = "Time per training step",
          .x_label = "step",
          .y_label = "ms",
          .curves = {{"whole step", steps, milliseconds(run.step_ns)},
                     {"optimizer", steps, milliseconds(run.optimizer_ns)}},
          .source = Source::kMeasured};
}

// A training and what it took: those before this one, then this one.
struct Training {
  std::string name;
  std::string mesh;
  TrainingCost cost;
};

std::vector<Training> trainings(const TrainOutcome& outcome) {
  std::vector<Training> out;
  for (const OtherTraining& other : outcome.beside) {
    if (other.cost) out.push_back({other.name, other.mesh, *other.cost});
  }
  if (!outcome.runs.front().step_ns.empty()) {
    out.push_back({training_name(outcome), outcome.mesh, training_cost(outcome.runs.front())});
  }
  return out;
}

report::Comparison training_table(const std::vector<Training>& list) {
  report::Comparison table{
      .title = "Trainings",
      .lead = "What a training step took, and what its plan moves. Times are medians over all steps.",
      .row_label = "training"};
  for (const auto& [name, mesh, cost] : list) {
    table.rows.push_back({name,
                          {measured(Figure::time("optimizer_ms", "optimizer step", cost.optimizer_ns)),
                           measured(Figure::time("train_step_ms", "whole training step", cost.step_ns)),
                           Figure::count("collectives", "collectives", cost.collectives),
                           Figure::bytes("bytes_sent_max", "sent by the busiest rank", cost.bytes_sent_max),
                           Figure::bytes("padding_bytes", "padding", cost.padding_bytes)}});
  }
  return table;
}

std::string runs_words(const std::vector<double>& losses) {
  return fmt::format("mean of {} runs, standard deviation {:.4f}", losses.size(), train::standard_deviation(losses));
}

std::string losses_words(const TrainOutcome& outcome) {
  std::vector<std::string> other;
  for (const OtherTraining& one : outcome.beside) {
    if (one.losses != outcome.runs.front().losses) other.push_back(one.name);
  }
  if (!other.empty()) return fmt::format("The losses of {} differ.", report::list_words(other));
  return fmt::format("All {} trainings have the same {} losses, bit for bit.", outcome.beside.size() + 1,
                     outcome.runs.front().losses.size());
}

// Times are compared where the ranks are the same: on other ranks, each has other work.
std::vector<std::string> findings(const TrainOutcome& outcome, const std::vector<Training>& list) {
  const TrainResult& run = outcome.runs.front();
  std::vector<std::string> out;
  std::vector<report::StepTime> steps;
  std::vector<report::Padding> padding;
  for (const auto& [name, mesh, cost] : list) {
    if (mesh != outcome.mesh) continue;
    steps.push_back({name, cost.optimizer_ns});
    padding.push_back({name, cost.padding_bytes, 0});
  }
  if (!steps.empty()) {
    out.push_back(report::fastest_words(steps, "optimizer step", "measured, median"));
    out.push_back(report::padding_words(padding));
  }
  if (!outcome.beside.empty()) out.push_back(losses_words(outcome));
  const std::vector<double> losses = outcome.final_losses();
  const bool several = losses.size() > 1;
  out.push_back(
      fmt::format("The held-out loss is {:.4f} nats per token{}. Guessing by the frequency of letters costs {:.4f}.",
                  train::mean(losses), several ? fmt::format(" ({})", runs_words(losses)) : "", run.unigram_entropy));
  if (several && outcome.target) {
    out.push_back(fmt::format("A mean this low has p = {:.4g} if the true mean is the target {}.",
                              train::p_below(losses, *outcome.target), *outcome.target));
  }
  return out;
}

std::vector<Figure> facts(const TrainOutcome& outcome) {
  const TrainResult& run = outcome.runs.front();
  const std::vector<double> losses = outcome.final_losses();
  const bool several = losses.size() > 1;
  std::vector<Figure> all{
      measured(Figure::number(several ? "mean" : "final_loss", "held-out loss", train::mean(losses)))
          .with_note("nats per token" + (several ? ", " + runs_words(losses) : "")),
      Figure::number("unigram_entropy", "guessing by frequency", run.unigram_entropy).with_note("nats per token"),
      Figure::count("steps", "steps", std::ssize(run.losses))
          .with_note(fmt::format("of {} tokens", plan_text::grouped_text(run.tokens_a_step))),
      Figure::count("parameters", "weights", run.parameters)};
  if (!run.step_ns.empty()) {
    all.push_back(measured(Figure::count("tokens_per_s", "tokens per second", std::llround(run.tokens_per_s()))));
    all.push_back(measured(Figure::share("optimizer_share", "optimizer's share of a step", run.optimizer_share())));
  }
  if (!outcome.beside.empty()) {
    all.insert(all.begin(), measured(Figure::yes_no("same_losses", "same losses", outcome.same_losses()))
                                .with_note(fmt::format("bit for bit, in all {} trainings", outcome.beside.size() + 1)));
  }
  return all;
}

}  // namespace

// Empty for a file of an older version, which lacks the medians, and for a training that made no step.
static std::optional<TrainingCost> read_cost(const nlohmann::json& json) {
  const auto number = [&](const char* pointer) {
    const nlohmann::json::json_pointer at(pointer);
    return json.contains(at) && json[at].is_number() ? json[at].get<double>() : -1;
  };
  const auto whole = [&](const char* pointer) { return static_cast<int64_t>(number(pointer)); };
  const TrainingCost cost{.step_ns = std::llround(number("/step_ms") * 1e6),
                          .optimizer_ns = std::llround(number("/optimizer_ms") * 1e6),
                          .collectives = whole("/plan/collectives"),
                          .bytes_sent_max = whole("/plan/bytes_sent_max"),
                          .padding_bytes = whole("/plan/padding_bytes")};
  if (cost.step_ns <= 0 || cost.optimizer_ns <= 0 || cost.collectives < 0 || cost.bytes_sent_max < 0 ||
      cost.padding_bytes < 0) {
    return std::nullopt;
  }
  return cost;
}

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
  return {.name = fmt::format("{}, {} ({})", json["mesh"].get<std::string>(), json["strategy"].get<std::string>(),
                              std::filesystem::path(file).stem().string()),
          .mesh = json["mesh"],
          .losses = json["losses"].get<std::vector<double>>(),
          .cost = read_cost(json)};
}

std::vector<report::TracedStep> traced_steps(const TrainOutcome& outcome) {
  return traced_ranks(std::string(name(outcome.execution.plan.strategy)), outcome.runs.front().timelines);
}

report::Page train_page(const TrainOutcome& outcome) {
  const TrainResult& run = outcome.runs.front();
  const PlanOptions& plan = outcome.execution.plan;
  report::Page page = plan_page_with_others(
      {.problem = run.problem, .plan = run.plan, .summary = run.summary, .cost = plan.cost}, plan);
  page.title = "A small GPT learns on " + plan_text::counted_text(run.problem.ranks, "rank");
  page.subtitle = fmt::format("{} · {}", training_words(outcome), page.subtitle);
  page.strategies_note = fmt::format(
      "Nothing here is measured: the cost table {} predicts it, for ranks that each have a device to themselves.",
      plan_text::printable(plan.cost.device));
  const std::vector<Training> list = trainings(outcome);
  page.findings = findings(outcome, list);
  page.facts = facts(outcome);
  if (list.size() > 1) page.comparisons = {training_table(list)};
  if (list.size() < outcome.beside.size() + 1) {
    page.notes.emplace_back("Trainings without measured times are left out of the comparison of times.");
  }
  page.charts = {loss_chart(outcome)};
  if (!train::held_out_spread(outcome.runs).empty()) page.charts.push_back(held_out_chart(outcome));
  if (!run.step_ns.empty()) page.charts.push_back(time_chart(run));
  page.timelines = traced_steps(outcome);
  page.timelines_note = "The last training step.";
  page.timelines_source = Source::kMeasured;
  return page;
}

}  // namespace muster::cli
