// A plan as one JSON object: the contract of `muster plan --json`.
#pragma once

#include <string>

#include "plan/explain.h"
#include "plan_text/parameter_table.h"
#include "plan_text/plan_report.h"

namespace muster::plan_text {

// What is left out if it is null.
struct PlanDetails {
  const plan::Explanation* explanation = nullptr;         // "explanation"
  const std::vector<ParameterRow>* parameters = nullptr;  // "parameter_table"
};

// Ends with a newline. `wave_table` and `rank_table` are there for at most 64 waves and 64 ranks.
std::string plan_json(const PlanReport& report, const PlanDetails& details = {});

}  // namespace muster::plan_text
