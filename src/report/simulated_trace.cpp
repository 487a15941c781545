#include "report/simulated_trace.h"

#include <fmt/format.h>

#include "report/trace.h"

namespace muster::report {

std::string simulated_trace(std::span<const SimulatedStep> steps) {
  std::vector<TracedStep> traced;
  for (const SimulatedStep& step : steps) {
    const sim::Timeline& timeline = step.simulation.timeline;
    for (size_t rank = 0; rank < timeline.size(); ++rank) {
      TracedStep one{static_cast<int32_t>(rank), step.name, 0, step.simulation.step_ns, {}};
      for (const sim::Span& span : timeline[rank]) {
        const bool exchange = span.stream == sim::Stream::kExchange;
        std::string label = exchange ? fmt::format("wave {} {}", span.wave, span.label) : std::string(span.label);
        one.events.push_back({std::move(label), exchange, span.wave, span.begin_ns, span.end_ns, span.bytes});
      }
      traced.push_back(std::move(one));
    }
  }
  return trace_json(traced);
}

}  // namespace muster::report
