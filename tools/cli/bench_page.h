// What `muster bench` measured, as a report.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "muster/plan.h"
#include "report/page.h"
#include "run/bench.h"

namespace muster::cli {

// The step that was traced, of every rank and case; `names` has one for each case.
std::vector<report::TracedStep> traced_steps(std::span<const run::BenchResult> results,
                                             std::span<const std::string> names);

// `how` says on what it was measured. At least one case, as many results.
report::Page bench_page(const Problem& problem, std::span<const PlanOptions> cases,
                        std::span<const run::BenchResult> results, const std::string& how);

}  // namespace muster::cli
