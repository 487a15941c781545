#include "simulate_page.h"

#include <algorithm>

#include <fmt/format.h>

#include "plan_choice.h"
#include "plan_text/text.h"
#include "report/findings.h"
#include "report/plan_page.h"
#include "report/simulated_trace.h"

namespace muster::cli {
namespace {

using report::Figure;
using report::Source;

Figure simulated(const Figure& figure) { return figure.from(Source::kSimulated); }
Figure predicted(const Figure& figure) { return figure.from(Source::kPredicted); }

report::StrategyRow row(const SimulatedCase& c) {
  const sim::Simulation& s = c.simulation;
  return {
      plan_name(c.options),
      s.bytes_sent,
      c.summary.padding_bytes,
      {simulated(Figure::time("step_ms", "step", s.step_ns)), predicted(Figure::time("bound_ms", "bound", s.bound_ns)),
       simulated(Figure::ratio("step_over_bound", "step / bound", c.over_bound())),
       simulated(Figure::time("compute_ms", "compute", s.compute_ns)),
       simulated(Figure::time("exposed_comm_ms", "exposed exchanges", s.exposed_comm_ns)),
       predicted(Figure::ratio("imbalance", "slowest / mean rank", c.summary.imbalance())),
       Figure::count("collectives", "collectives", c.summary.collectives),
       Figure::count("messages", "messages", s.messages),
       Figure::bytes("padding_bytes", "padding", c.summary.padding_bytes),
       Figure::bytes("scratch_bytes_max", "scratch, at most", s.scratch_bytes_max),
       Figure::bytes("memory_bytes_max", "memory, at most", s.memory_bytes_max),
       Figure::yes_no("fits", "fits", s.fits)}};
}

std::vector<Figure> facts(const sim::Cluster& cluster, const std::vector<SimulatedCase>& cases) {
  const auto fastest = std::ranges::min_element(cases, {}, [](const auto& c) { return c.simulation.step_ns; });
  const sim::Simulation& s = fastest->simulation;
  const std::string name = plan_name(fastest->options);
  return {simulated(Figure::time("step_ms", "shortest step", s.step_ns)).with_note(name),
          predicted(Figure::time("bound_ms", "bound", s.bound_ns)).with_note("no schedule takes less"),
          simulated(Figure::ratio("step_over_bound", "step / bound", fastest->over_bound())).with_note(name),
          simulated(Figure::time("exposed_comm_ms", "exposed exchanges", s.exposed_comm_ns)).with_note(name),
          Figure::bytes("memory_bytes_max", "memory of the fullest rank", s.memory_bytes_max)
              .with_note(fmt::format("of {}; without activations", plan_text::bytes_text(cluster.memory_bytes)))};
}

std::vector<std::string> findings(const std::vector<SimulatedCase>& cases,
                                  const std::vector<report::StrategyRow>& rows) {
  std::vector<report::StepTime> steps;
  std::vector<std::string> too_large;
  for (const SimulatedCase& c : cases) {
    steps.push_back({plan_name(c.options), c.simulation.step_ns});
    if (!c.simulation.fits) too_large.push_back(plan_name(c.options));
  }
  const auto fastest = std::ranges::min_element(cases, {}, [](const auto& c) { return c.simulation.step_ns; });
  std::vector<std::string> out = {report::fastest_words(steps, "optimizer step", "simulated"),
                                  fmt::format("No schedule can take less than {} here; {} takes {:.2f}× that.",
                                              plan_text::time_text(fastest->simulation.bound_ns),
                                              plan_name(fastest->options), fastest->over_bound()),
                                  report::padding_words(report::padding_of(rows))};
  if (!too_large.empty()) {
    out.push_back(fmt::format("Not enough memory on a rank of the cluster: {}.", report::list_words(too_large)));
  }
  return out;
}

}  // namespace

double SimulatedCase::over_bound() const {
  return static_cast<double>(simulation.step_ns) / static_cast<double>(std::max<int64_t>(1, simulation.bound_ns));
}

std::vector<report::TracedStep> simulated_steps(const std::vector<SimulatedCase>& cases) {
  std::vector<report::TracedStep> steps;
  for (const SimulatedCase& c : cases) {
    for (report::TracedStep& one : report::simulated_step(plan_name(c.options), c.simulation)) {
      steps.push_back(std::move(one));
    }
  }
  return steps;
}

report::Page simulate_page(const Problem& problem, const sim::Cluster& cluster, const std::vector<SimulatedCase>& cases,
                           const std::string& part) {
  report::Page page;
  page.title = fmt::format("{} on {} of {}, simulated", plan_text::printable(problem.model),
                           plan_text::counted_text(problem.ranks, "rank"), plan_text::printable(cluster.name));
  page.subtitle = fmt::format("{}{} · cost table {}", part.empty() ? "" : part + " · ",
                              report::problem_words(problem, std::ssize(cases.front().plan.owner)),
                              plan_text::printable(cluster.cost.device));
  page.facts = facts(cluster, cases);
  for (const SimulatedCase& c : cases) {
    const std::string name = plan_name(c.options);
    page.strategies.push_back(row(c));
    page.loads.push_back(report::plan_load(c.summary, name));
    page.maps.push_back(
        report::plan_map({.problem = problem, .plan = c.plan, .summary = c.summary, .cost = c.options.cost}, name));
  }
  page.timelines = simulated_steps(cases);
  page.findings = findings(cases, page.strategies);
  page.strategies_note = "Each plan was replayed on the modelled cluster.";
  page.timelines_note = "One step of each strategy on the modelled cluster.";
  page.timelines_source = Source::kSimulated;
  page.notes.push_back(report::cost_note(cluster.cost));
  page.notes.push_back(fmt::format("The cluster: {}", plan_text::printable(cluster.source)));
  return page;
}

}  // namespace muster::cli
