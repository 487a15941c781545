#include "report/simulated_trace.h"

#include <fmt/format.h>

namespace muster::report {

std::vector<TracedStep> simulated_step(const std::string& name, const sim::Simulation& simulation) {
  std::vector<TracedStep> ranks;
  for (size_t rank = 0; rank < simulation.timeline.size(); ++rank) {
    TracedStep& one = ranks.emplace_back(TracedStep{static_cast<int32_t>(rank), name, 0, simulation.step_ns, {}});
    for (const sim::Span& span : simulation.timeline[rank]) {
      const bool exchange = span.stream == sim::Stream::kExchange;
      std::string label = exchange ? fmt::format("wave {} {}", span.wave, span.label) : std::string(span.label);
      one.events.push_back({std::move(label), exchange, span.wave, span.begin_ns, span.end_ns, span.bytes});
    }
  }
  return ranks;
}

}  // namespace muster::report
