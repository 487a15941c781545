#include "report/lanes.h"

#include <algorithm>

namespace muster::report {

std::vector<const TraceEvent*> in_order(std::span<const TraceEvent> events) {
  std::vector<const TraceEvent*> sorted;
  for (const TraceEvent& event : events) sorted.push_back(&event);
  std::stable_sort(sorted.begin(), sorted.end(), [](const TraceEvent* a, const TraceEvent* b) {
    return a->begin_ns != b->begin_ns ? a->begin_ns < b->begin_ns : a->end_ns > b->end_ns;
  });
  return sorted;
}

}  // namespace muster::report
