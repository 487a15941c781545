#include "report/simulated_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace muster::report {
namespace {

TEST(SimulatedTrace, HasAComputeAndAnExchangeTrackForEveryRank) {
  sim::Simulation simulation;
  simulation.step_ns = 9'000;
  simulation.timeline = {{{"orthogonalize", sim::Stream::kCompute, 0, 2'000, 7'000, 0}},
                         {{"in", sim::Stream::kExchange, 0, 0, 2'000, 64}}};
  const nlohmann::json json = nlohmann::json::parse(trace_json(simulated_step("global", simulation)));
  std::vector<std::string> seen;
  for (const nlohmann::json& event : json["traceEvents"]) {
    if (event["ph"] != "X") continue;
    seen.push_back(event["name"].get<std::string>() + " " + event["pid"].dump() + " " + event["tid"].dump() + " " +
                   event["ts"].dump() + " " + event["dur"].dump());
  }
  EXPECT_THAT(seen, testing::UnorderedElementsAre("global 0 1 0.0 9.0", "global 1 1 0.0 9.0",
                                                  "orthogonalize 0 1 2.0 5.0", "wave 0 in 1 2 0.0 2.0"));
}

}  // namespace
}  // namespace muster::report
