#include "muster/plan.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "base/text.h"
#include "muster/error.h"
#include "plan/catalog.h"
#include "plan/cost_model/cost_model.h"
#include "plan/cost_model/plan_cost.h"
#include "plan/element_shares.h"
#include "plan/plan_hash.h"
#include "plan/replicas.h"
#include "plan/scratch.h"
#include "plan/strategies/strategies.h"

namespace muster {

namespace {

constexpr std::pair<Strategy, std::string_view> kNames[] = {
    {Strategy::kGlobal, "global"},       {Strategy::kPerMatrix, "per_matrix"}, {Strategy::kChunked, "chunked"},
    {Strategy::kGrouped, "grouped"},     {Strategy::kMegabatch, "megabatch"},  {Strategy::kRouted, "routed"},
    {Strategy::kLayerwise, "layerwise"},
};

Plan build(const plan::Catalog& catalog, const plan::CostModel& cost, const PlanOptions& options) {
  switch (options.strategy) {
    case Strategy::kGlobal:
      return plan::build_global(catalog, cost, options);
    case Strategy::kPerMatrix:
      return plan::build_per_matrix(catalog);
    case Strategy::kChunked:
      return plan::build_chunked(catalog);
    case Strategy::kGrouped:
      return plan::build_grouped(catalog, options);
    case Strategy::kMegabatch:
      return plan::build_megabatch(catalog);
    case Strategy::kRouted:
      return plan::build_routed(catalog);
    case Strategy::kLayerwise:
      return plan::build_layerwise(catalog);
  }
  throw Internal("unknown strategy");
}

void check_order(const Problem& problem, const PlanOptions& options) {
  if (options.order.empty()) return;
  if (options.strategy != Strategy::kGlobal) {
    base::fail("order: strategy {} fixes its own", name(options.strategy));
  }
  std::vector<bool> seen(problem.parameters.size());
  for (const int32_t p : options.order) {
    if (p < 0 || p >= static_cast<int32_t>(seen.size()) || seen[p]) {
      base::fail("order: parameter {}: expected each of 0 to {} once", p, seen.size() - 1);
    }
    seen[p] = true;
  }
}

void check_groups(const PlanOptions& options) {
  for (const int64_t size : options.groups) {
    if (size < 1) base::fail("groups: size {}", size);
  }
  if (!options.groups.empty() && options.strategy != Strategy::kGrouped) {
    base::fail("groups {}: is for strategy grouped, not {}", base::list_text(options.groups), name(options.strategy));
  }
  if (options.mixed_groups && options.strategy != Strategy::kGrouped) {
    base::fail("mixed groups: is for strategy grouped, not {}", name(options.strategy));
  }
}

// Other strategies may orthogonalize a matrix on several ranks, or matrices of zeros with it.
void check_rules(const Problem& problem, const PlanOptions& options) {
  if (options.strategy == Strategy::kGlobal) return;
  for (const Parameter& p : problem.parameters) {
    if (p.algorithm != Algorithm::kRule) continue;
    base::fail("parameter '{}': it has a rule, which strategy {} cannot plan; expected global", p.name,
               name(options.strategy));
  }
}

double ratio(int64_t a, int64_t b) { return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 1.0; }

}  // namespace

void plan::check_fits(const plan::Catalog& catalog, const Plan& plan) {
  const auto matrices = static_cast<size_t>(catalog.matrix_count());
  bool fits = plan.owner.size() == matrices && plan.wave.size() == matrices && !plan.waves.empty();
  const auto waves = static_cast<int32_t>(plan.waves.size());
  for (size_t j = 0; fits && j < matrices; ++j) {
    fits = plan.owner[j] >= 0 && plan.owner[j] < catalog.problem().ranks && plan.wave[j] >= 0 && plan.wave[j] < waves;
  }
  fits = fits && plan.in_flight > 0 && plan.in_flight == plan::most_in_flight(plan.in_flight, plan.waves.size());
  fits = fits && (plan.each_replica.empty() || plan.each_replica.size() == matrices);
  for (int32_t j = 0; fits && j < catalog.matrix_count(); ++j) {
    if (!plan::in_each_replica(plan, j)) continue;
    fits = plan::can_repeat(catalog, catalog.class_at(j)) && catalog.holders_of(j).find(plan.owner[j]) != nullptr &&
           plan.waves[plan.wave[j]].transport != Transport::kGather;
  }
  for (const Wave& wave : plan.waves) {
    for (const ZeroMatrix& zero : wave.zeros) fits = fits && zero.like >= 0 && zero.like < catalog.matrix_count();
  }
  const auto parameters = static_cast<int32_t>(catalog.problem().parameters.size());
  for (const std::vector<int32_t>& family : plan.families) {
    for (const int32_t p : family) fits = fits && p >= 0 && p < parameters;
  }
  for (const ElementShare& share : plan.shares) {
    for (const int32_t rank : share.ranks) fits = fits && rank >= 0 && rank < catalog.problem().ranks;
  }
  if (!fits) {
    base::fail("a plan of {} matrices is not one for model '{}' of {}", plan.owner.size(), catalog.problem().model,
               matrices);
  }
}

std::string_view name(Strategy strategy) {
  for (const auto& [value, text] : kNames) {
    if (value == strategy) return text;
  }
  throw Internal("unknown strategy");
}

Strategy parse_strategy(std::string_view text) {
  for (const auto& [value, known] : kNames) {
    if (known == text) return value;
  }
  std::string all;
  for (const auto& [value, known] : kNames) all += (all.empty() ? "" : ", ") + std::string(known);
  base::fail("strategy {} is none of {}", base::in_quotes(text), all);
}

const std::vector<Strategy>& all_strategies() {
  static const std::vector<Strategy> all = [] {
    std::vector<Strategy> out;
    for (const auto& entry : kNames) out.push_back(entry.first);
    return out;
  }();
  return all;
}

Plan make_plan(const Problem& problem, const PlanOptions& options) {
  validate(problem);
  validate(options.cost);
  if (options.waves < 0 || options.waves > (1 << 20)) base::fail("waves {}", options.waves);
  if (options.waves > 0 && options.strategy != Strategy::kGlobal) {
    base::fail("waves {}: strategy {} fixes its own rounds", options.waves, name(options.strategy));
  }
  const bool default_order =
      options.wave_order == WaveOrder::kSmallFirst && options.elementwise == ElementwiseOrder::kInterleaved;
  if (options.wave_order > WaveOrder::kSmallLast || options.elementwise > ElementwiseOrder::kFirst) {
    base::fail("wave order {}, elementwise order {}: expected 0 or 1, 0 to 2", static_cast<int>(options.wave_order),
               static_cast<int>(options.elementwise));
  }
  if (!default_order && options.strategy != Strategy::kGlobal) {
    base::fail("wave order: strategy {} fixes its own", name(options.strategy));
  }
  check_order(problem, options);
  check_groups(options);
  check_rules(problem, options);
  if (options.in_flight < 0) base::fail("in flight {}: expected at least 1, or 0", options.in_flight);
  if (options.scratch_bytes.value_or(0) < 0) base::fail("scratch cap of {} bytes", *options.scratch_bytes);
  const plan::Catalog catalog(problem);
  const plan::CostModel cost(catalog, options.cost);
  Plan plan = build(catalog, cost, options);
  if (plan.strategy != Strategy::kGlobal) {
    const int32_t in_flight = options.in_flight > 0 ? options.in_flight : plan.in_flight;
    plan.in_flight = plan::most_in_flight(in_flight, plan.waves.size());
    plan::check_traffic(catalog, plan);
    std::vector<int64_t> evenly(problem.ranks);
    plan::share_elements(catalog, cost, 100, evenly, plan);
  }
  plan.hash = plan::plan_hash(problem, options.cost, plan);
  return plan;
}

PlanSummary summarize(const Problem& problem, const Plan& plan, const CostTable& table) {
  validate(problem);
  validate(table);
  const plan::Catalog catalog(problem);
  plan::check_fits(catalog, plan);
  const plan::CostModel cost(catalog, table, plan::repeated_classes(catalog, plan));
  PlanSummary summary = plan::plan_cost(catalog, cost, plan);
  summary.largest_matrix_ns = plan::largest_matrix_ns(catalog, cost, plan);
  return summary;
}

double PlanSummary::imbalance() const { return ratio(slowest_ns, mean_ns); }

double PlanSummary::over_bound() const { return ratio(slowest_ns, std::max(mean_ns, largest_matrix_ns)); }

}  // namespace muster
