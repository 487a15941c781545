// A plan as one JSON object: the contract of `muster plan --json`.
#pragma once

#include <string>

#include "plan/explain.h"
#include "plan_text/plan_report.h"

namespace muster::plan_text {

// Ends with a newline. `wave_table` and `rank_table` are there for at most 64 waves and 64 ranks; `explanation` only
// if one is given.
std::string plan_json(const PlanReport& report, const plan::Explanation* explanation = nullptr);

}  // namespace muster::plan_text
