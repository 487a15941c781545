// What `muster simulate` found out, as a report.
#pragma once

#include <string>
#include <vector>

#include "muster/plan.h"
#include "report/page.h"
#include "sim/simulate.h"

namespace muster::cli {

struct SimulatedCase {
  PlanOptions options;
  Plan plan;
  PlanSummary summary;
  sim::Simulation simulation;
  double plan_ms = 0;

  double over_bound() const;
};

// The simulated step of every case and rank, where timelines were kept.
std::vector<report::TracedStep> simulated_steps(const std::vector<SimulatedCase>& cases);

// At least one case. `part` says which part of the model it is; empty: all.
report::Page simulate_page(const Problem& problem, const sim::Cluster& cluster, const std::vector<SimulatedCase>& cases,
                           const std::string& part);

}  // namespace muster::cli
