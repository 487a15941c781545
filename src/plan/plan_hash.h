// Fingerprints of problems and plans: ranks compare them before the first step.
#pragma once

#include <cstdint>
#include <vector>

#include "muster/plan.h"

namespace muster::plan {

// One per parameter, over everything the planner reads of it. Ranks that disagree find the first that differs.
std::vector<uint64_t> parameter_fingerprints(const Problem& problem);

// Over every number of a cost table.
uint64_t cost_fingerprint(const CostTable& cost);

// Over the problem, the cost table, the library version and every decision of the plan.
uint64_t plan_hash(const Problem& problem, const CostTable& cost, const Plan& plan);

}  // namespace muster::plan
