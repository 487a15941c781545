#include "plan_others.h"

#include <algorithm>

#include <fmt/format.h>

#include "muster/error.h"
#include "plan_text/text.h"

namespace muster::cli {
namespace {

constexpr int64_t kExchangeRanksMax = 1 << 24;  // of a strategy that is only compared with: some 3 s

}  // namespace

report::Page plan_page_with_others(const plan_text::PlanReport& report, const PlanOptions& options) {
  std::vector<Strategy> strategies = all_strategies();
  std::erase(strategies, options.strategy);
  std::ranges::stable_partition(strategies, [](Strategy s) { return s == Strategy::kChunked; });
  std::vector<report::Alternative> others;
  std::vector<std::string> left_out;
  for (const Strategy strategy : strategies) {
    const int64_t exchanges = std::ssize(report.plan.owner);
    if (strategy == Strategy::kPerMatrix && exchanges > kExchangeRanksMax / report.problem.ranks) {
      left_out.push_back(fmt::format("per_matrix is left out: {} exchanges of {} ranks take long to add up.",
                                     plan_text::grouped_text(exchanges),
                                     plan_text::grouped_text(report.problem.ranks)));
      continue;
    }
    PlanOptions other = options;
    other.strategy = strategy;
    other.waves = 0;
    other.in_flight = 0;
    other.groups.clear();
    other.mixed_groups = false;
    other.wave_order = {};  // these are global's
    other.elementwise = {};
    try {
      const Plan plan = make_plan(report.problem, other);
      others.push_back({std::string(name(strategy)), summarize(report.problem, plan, options.cost)});
    } catch (const InvalidArgument& error) {
      left_out.push_back(fmt::format("{} cannot plan this model: {}.", name(strategy), error.what()));
    }
  }
  report::Page page = report::plan_page(report, others);
  page.notes.insert(page.notes.end(), left_out.begin(), left_out.end());
  return page;
}

}  // namespace muster::cli
