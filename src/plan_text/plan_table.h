// A plan as a table on a terminal.
#pragma once

#include <string>

#include "plan_text/plan_report.h"

namespace muster::plan_text {

struct TableOptions {
  bool colour = false;  // ANSI sequences; for a terminal only
  int width = 110;      // columns; the shapes of a wave and the load bars take what is left
};

// Up to 16 waves and 16 ranks one line each; beyond that the ends of the waves, and of the ranks the slowest, median
// and fastest with a histogram. Ends with a newline.
std::string plan_table(const PlanReport& report, const TableOptions& options);

}  // namespace muster::plan_text
