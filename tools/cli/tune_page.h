// What `muster tune` measured, as a report.
#pragma once

#include <string>

#include "report/page.h"
#include "run/tune.h"

namespace muster::cli {

// `how` says on how many ranks of which kind it was measured; `file` is where the cost table is.
report::Page tune_page(const run::TuneResult& result, const std::string& how, const std::string& file);

}  // namespace muster::cli
