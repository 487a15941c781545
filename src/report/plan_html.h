// A plan as one static HTML page that needs nothing else.
#pragma once

#include <string>

#include "report/plan_report.h"

namespace muster::report {

// At most 256 load bars (beyond that a bar is the slowest rank of its neighbours) and 64 waves, whatever the plan.
std::string plan_html(const PlanReport& report);

}  // namespace muster::report
