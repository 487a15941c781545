// A plan as a report, and the parts of it that other reports take.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "plan_text/plan_report.h"
#include "report/page.h"

namespace muster::report {

PlanMap plan_map(const plan_text::PlanReport& report, std::string strategy);
Load plan_load(const PlanSummary& summary, std::string strategy);
StrategyRow plan_row(const PlanSummary& summary, std::string strategy);

// "mesh fsdp=8 · 148 parameters · 124.4 M elements · 72 matrices".
std::string problem_words(const Problem& problem, int64_t matrices);

// Where predicted and counted figures come from.
std::string cost_note(const CostTable& cost);

// What the same problem takes with another strategy.
struct Alternative {
  std::string strategy;
  PlanSummary summary;
};

// The plan stands last; what it is to be compared with should stand first.
Page plan_page(const plan_text::PlanReport& report, std::span<const Alternative> others);

}  // namespace muster::report
