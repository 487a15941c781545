// The timelines of simulated steps, as trace.h has measured ones.
#pragma once

#include <string>
#include <vector>

#include "report/trace.h"
#include "sim/simulate.h"

namespace muster::report {

// Of every rank.
std::vector<TracedStep> simulated_step(const std::string& name, const sim::Simulation& simulation);

}  // namespace muster::report
