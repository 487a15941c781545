// Why a parameter goes where it goes, for a person.
#pragma once

#include <string>

#include "plan/explain.h"
#include "plan_text/plan_report.h"

namespace muster::plan_text {

// One sentence, derived from the candidates' figures. `matrix` has at least one candidate, the owner.
std::string reason(const PlanReport& report, const plan::MatrixExplanation& matrix);

// Who updates an elementwise parameter, in a sentence.
std::string updaters_text(const PlanReport& report, const plan::Explanation& explanation);

// Ends with a newline.
std::string explain_text(const PlanReport& report, const plan::Explanation& explanation);

}  // namespace muster::plan_text
