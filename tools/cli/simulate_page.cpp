#include "simulate_page.h"

#include <algorithm>

#include <fmt/format.h>

#include "plan_choice.h"
#include "plan_text/text.h"
#include "report/plan_page.h"
#include "report/simulated_trace.h"

namespace muster::cli {
namespace {

using report::Figure;

report::StrategyRow row(const SimulatedCase& c) {
  const sim::Simulation& s = c.simulation;
  return {
      plan_name(c.options),
      s.bytes_sent,
      c.summary.padding_bytes,
      {Figure::time("step_ms", "step", s.step_ns), Figure::time("bound_ms", "bound", s.bound_ns),
       Figure::ratio("over_bound", "over bound", c.over_bound()), Figure::time("compute_ms", "compute", s.compute_ns),
       Figure::time("exposed_comm_ms", "exposed exchanges", s.exposed_comm_ns),
       Figure::ratio("imbalance", "imbalance", c.summary.imbalance()),
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
  Figure step = Figure::time("step_ms", "fastest step", s.step_ns);
  step.note = name;
  Figure bound = Figure::time("bound_ms", "bound", s.bound_ns);
  bound.note = "no schedule takes less";
  Figure exposed = Figure::time("exposed_comm_ms", "exposed exchanges", s.exposed_comm_ns);
  exposed.note = name;
  Figure memory = Figure::bytes("memory_bytes_max", "memory of the fullest rank", s.memory_bytes_max);
  memory.note = fmt::format("of {}; without activations", plan_text::bytes_text(cluster.memory_bytes));
  return {step, bound, Figure::ratio("over_bound", "over bound", fastest->over_bound()), exposed, memory};
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

report::Page simulate_page(const Problem& problem, const sim::Cluster& cluster,
                           const std::vector<SimulatedCase>& cases) {
  report::Page page;
  page.title = fmt::format("{} on {} rank{} of {}, simulated", plan_text::printable(problem.model),
                           plan_text::grouped_text(problem.ranks), problem.ranks == 1 ? "" : "s",
                           plan_text::printable(cluster.name));
  page.subtitle =
      fmt::format("{} · cost table {}", report::problem_words(problem, std::ssize(cases.front().plan.owner)),
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
  page.timelines_note = "Simulated.";
  page.notes.push_back(fmt::format("The cluster: {}", plan_text::printable(cluster.source)));
  return page;
}

}  // namespace muster::cli
