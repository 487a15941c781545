// 64-bit fingerprints, so that ranks can tell whether they plan the same thing.
#pragma once

#include <cstdint>
#include <vector>

#include "muster/plan.h"

namespace muster::plan {

// One a parameter, of everything the planner reads of it: ranks that disagree find the first differing one.
std::vector<uint64_t> parameter_fingerprints(const Problem& problem);

// Of problem, cost table, library version and every decision of the plan.
uint64_t plan_hash(const Problem& problem, const CostTable& cost, const Plan& plan);

}  // namespace muster::plan
