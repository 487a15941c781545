// The timelines of simulated steps, as trace.h writes measured ones.
#pragma once

#include <span>
#include <string>

#include "sim/simulate.h"

namespace muster::report {

struct SimulatedStep {
  std::string name;
  const sim::Simulation& simulation;
};

std::string simulated_trace(std::span<const SimulatedStep> steps);

}  // namespace muster::report
