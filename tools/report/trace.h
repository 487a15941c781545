// A timeline of steps, as Perfetto (ui.perfetto.dev) and chrome://tracing load it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "muster/optimizer.h"

namespace muster::report {

// One step of one rank.
struct TracedStep {
  int32_t rank = 0;
  std::string name;      // "global, 2 waves": steps of the same name are one step on several ranks
  int64_t begin_ns = 0;  // by the rank's own clock, the same instant on every rank
  int64_t end_ns = 0;
  std::vector<TraceEvent> events;
};

// A process a rank, with one track for what it computes and as many for exchanges as are under way at once. Steps
// follow one another in the order of their names' first appearance; ranks of one step are aligned at its beginning.
std::string trace_json(std::span<const TracedStep> steps);

}  // namespace muster::report
