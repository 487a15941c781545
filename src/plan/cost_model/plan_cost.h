// What a plan moves and costs, per wave and rank, computed from counts of matrices per class: no piece is listed.
#pragma once

#include "muster/plan.h"
#include "plan/catalog.h"
#include "plan/cost_model/cost_model.h"

namespace muster::plan {

// Throws InvalidArgument unless the plan is one of this problem.
void check_fits(const Catalog& catalog, const Plan& plan);

// All of the summary but largest_matrix_ns, which the search for a plan does not need.
PlanSummary plan_cost(const Catalog& catalog, const CostModel& cost, const Plan& plan);
int64_t largest_matrix_ns(const Catalog& catalog, const CostModel& cost, const Plan& plan);

}  // namespace muster::plan
