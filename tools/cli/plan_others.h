// A plan as a report, compared with other strategies for the same problem.
#pragma once

#include "report/plan_page.h"

namespace muster::cli {

// The others are in the order of their names' list, but `chunked` first, which gives matrices to ranks in turn. One
// that cannot plan the model is noted.
report::Page plan_page_with_others(const plan_text::PlanReport& report, const PlanOptions& options);

}  // namespace muster::cli
