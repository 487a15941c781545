// What every report of a plan is made from, and the counts several of them share.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "muster/cost.h"
#include "muster/plan.h"
#include "muster/problem.h"

namespace muster::plan {
class Catalog;
}

namespace muster::plan_text {

struct PlanReport {
  const Problem& problem;
  const Plan& plan;
  const PlanSummary& summary;
  const CostTable& cost;
  int64_t plan_ns = 0;  // wall time of make_plan; 0: not measured
};

struct ShapeCount {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t count = 0;
};

// How many matrices of each shape fall into each group; `group_of` has one entry per matrix, in the order of
// Plan::owner, and entries outside [0, groups) are left out. Within a group the shape with most elements comes first.
std::vector<std::vector<ShapeCount>> count_shapes(const plan::Catalog& catalog, std::span<const int32_t> group_of,
                                                  int32_t groups);

// "48×768×768, 12×3072×768"; shapes that do not fit into `width` columns give way to "…".
std::string shapes_text(std::span<const ShapeCount> shapes, size_t width);

// "cap 1.00 GiB", "cap 1.62 GiB: 1.5 times the least that this model needs", "no cap". Both are as in Plan.
std::string scratch_cap_text(int64_t scratch_cap, bool scratch_cap_raised);
inline std::string scratch_cap_text(const Plan& plan) {
  return scratch_cap_text(plan.scratch_cap, plan.scratch_cap_raised);
}

int64_t zero_matrix_count(const PlanSummary& summary);
int64_t repeated_matrix_count(const Plan& plan);  // in each replica

// Indices of ranks, slowest first; ties by rank.
std::vector<int32_t> ranks_by_load(const PlanSummary& summary);

}  // namespace muster::plan_text
