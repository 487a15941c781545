// What was recorded on every rank, for timelines.
#pragma once

#include <string>
#include <vector>

#include "report/trace.h"
#include "run/timeline.h"

namespace muster::cli {

inline std::vector<report::TracedStep> traced_ranks(const std::string& name,
                                                    const std::vector<run::Timeline>& timelines) {
  std::vector<report::TracedStep> steps;
  for (const run::Timeline& t : timelines) {
    steps.push_back({static_cast<int32_t>(steps.size()), name, t.begin_ns, t.end_ns, t.events});
  }
  return steps;
}

}  // namespace muster::cli
