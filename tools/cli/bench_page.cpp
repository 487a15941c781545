#include "bench_page.h"

#include <algorithm>

#include <fmt/format.h>

#include "plan_choice.h"
#include "plan_text/text.h"
#include "report/findings.h"
#include "report/plan_page.h"
#include "traced_ranks.h"

namespace muster::cli {
namespace {

using report::Figure;
using report::Source;
using run::BenchResult;

Figure measured(const Figure& figure) { return figure.from(Source::kMeasured); }

int64_t step_ns(const BenchResult& result) { return run::median(result.step_ns); }

double speed_up(const BenchResult& result, const BenchResult& first) {
  return static_cast<double>(step_ns(first)) / static_cast<double>(std::max<int64_t>(1, step_ns(result)));
}

// Bytes of all ranks together are the plan's.
report::StrategyRow measured_row(const BenchResult& result, const BenchResult& first, const PlanSummary& summary,
                                 std::string name) {
  return {
      std::move(name),
      summary.bytes_sent_total,
      summary.padding_bytes,
      {measured(Figure::time("step_ms", "step", step_ns(result))),
       measured(Figure::time("step_ms_min", "fastest step", std::ranges::min(result.step_ns))),
       measured(Figure::time("host_ms", "host", run::median(result.host_ns))),
       measured(Figure::ratio("speed_up", "speed-up", speed_up(result, first))),
       Figure::time("predicted_ms", "step", result.predicted_ns).from(Source::kPredicted),
       Figure::count("waves", "waves", result.waves), Figure::count("collectives", "collectives", result.collectives),
       Figure::count("messages", "messages", result.messages),
       Figure::bytes("bytes_sent_max", "sent by the busiest", result.bytes_sent_max),
       Figure::bytes("padding_bytes", "padding", result.padding_bytes),
       Figure::bytes("scratch_bytes_max", "scratch, at most", result.scratch_bytes_max),
       Figure::yes_no("bitwise_equal", "same bits", result.bitwise_equal)}};
}

std::vector<Figure> facts(std::span<const BenchResult> results, std::span<const std::string> names) {
  const auto fastest = std::ranges::min_element(results, {}, step_ns);
  const std::string& name = names[static_cast<size_t>(fastest - results.begin())];
  const Figure step = measured(Figure::time("step_ms", "shortest step", step_ns(*fastest))).with_note(name);
  const Figure gain = measured(Figure::ratio("speed_up", "times as fast", speed_up(*fastest, results.front())))
                          .with_note(fmt::format("{} over {}", name, names.front()));
  const Figure least =
      Figure::count("collectives", "collectives, at least",
                    std::ranges::min(results, {}, &BenchResult::collectives).collectives)
          .with_note(fmt::format(
              "{} at most",
              plan_text::grouped_text(std::ranges::max(results, {}, &BenchResult::collectives).collectives)));
  const Figure steps =
      Figure::count("steps", "timed steps of each", std::ssize(fastest->step_ns)).with_note("medians, taken in turn");
  const Figure equal =
      Figure::yes_no("bitwise_equal", "same bits", std::ranges::all_of(results, &BenchResult::bitwise_equal))
          .with_note("all weights at the end");
  if (fastest == results.begin()) return {step, least, steps, equal};
  return {step, gain, least, steps, equal};
}

std::vector<std::string> findings(std::span<const BenchResult> results, std::span<const std::string> names,
                                  std::span<const report::StrategyRow> rows) {
  std::vector<report::StepTime> steps;
  std::vector<std::string> other;
  for (size_t i = 0; i < results.size(); ++i) {
    steps.push_back({names[i], step_ns(results[i])});
    if (!results[i].bitwise_equal) other.push_back(names[i]);
  }
  std::vector<std::string> out = {
      report::fastest_words(steps, "optimizer step",
                            fmt::format("measured, median of {}", results.front().step_ns.size())),
      report::padding_words(report::padding_of(rows))};
  if (!other.empty()) {
    out.push_back(fmt::format("The weights of {} differ from those of {}.", report::list_words(other), names.front()));
  } else if (names.size() > 1) {
    out.push_back(fmt::format("All {} end with the same weights, bit for bit.", names.size()));
  }
  return out;
}

}  // namespace

std::vector<report::TracedStep> traced_steps(std::span<const BenchResult> results, std::span<const std::string> names) {
  std::vector<report::TracedStep> steps;
  for (size_t i = 0; i < results.size(); ++i) {
    for (report::TracedStep& one : traced_ranks(names[i], results[i].timelines)) steps.push_back(std::move(one));
  }
  return steps;
}

report::Page bench_page(const Problem& problem, std::span<const PlanOptions> cases,
                        std::span<const BenchResult> results, const std::string& how) {
  std::vector<std::string> names;
  for (const PlanOptions& options : cases) names.push_back(plan_name(options));
  report::Page page;
  page.facts = facts(results, names);
  int64_t matrices = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    const Plan plan = make_plan(problem, cases[i]);
    const PlanSummary summary = summarize(problem, plan, cases[i].cost);
    page.strategies.push_back(measured_row(results[i], results.front(), summary, names[i]));
    page.loads.push_back(report::plan_load(summary, names[i]));
    page.maps.push_back(
        report::plan_map({.problem = problem, .plan = plan, .summary = summary, .cost = cases[i].cost}, names[i]));
    matrices = std::ssize(plan.owner);
  }
  page.findings = findings(results, names, page.strategies);
  page.title = fmt::format("{} on {}, measured", plan_text::printable(problem.model),
                           plan_text::counted_text(problem.ranks, "rank"));
  page.subtitle = fmt::format("{} · {}", how, report::problem_words(problem, matrices));
  page.timelines = traced_steps(results, names);
  page.strategies_note = "Steps of all strategies were timed in turn, on the same gradients.";
  page.timelines_note = "One more step of each, after the timed ones.";
  page.timelines_source = Source::kMeasured;
  page.notes.push_back(report::cost_note(cases.front().cost));
  return page;
}

}  // namespace muster::cli
