#include "report/trace.h"

#include <map>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace muster::report {
namespace {

using Json = nlohmann::json;

TraceEvent compute(std::string name, int64_t begin, int64_t end) {
  return {.name = std::move(name), .exchange = false, .wave = 0, .begin_ns = begin, .end_ns = end};
}

TraceEvent exchange(std::string name, int64_t begin, int64_t end) {
  return {.name = std::move(name), .exchange = true, .wave = 1, .begin_ns = begin, .end_ns = end, .bytes = 4096};
}

// Two strategies on two ranks whose clocks differ by 5 s. Exchanges overlap: wave 1 arrives while wave 0 leaves.
std::vector<TracedStep> sample() {
  std::vector<TracedStep> steps;
  for (const char* name : {"chunked, 2 waves", "global, 2 waves"}) {
    for (int32_t rank = 0; rank < 2; ++rank) {
      const int64_t start = 1'000'000'000 + rank * 5'000'000'000;
      TracedStep step{rank, name, start, start + 90'000, {}};
      step.events = {exchange("wave 1 in", start + 20'000, start + 60'000),
                     compute("orthogonalize 8×8", start + 25'000, start + 55'000),
                     compute("pack", start + 1'000, start + 20'000),
                     exchange("wave 0 out", start + 56'000, start + 80'000),
                     exchange("wave 0 in", start + 2'000, start + 20'000),
                     compute("apply \"x\"\n", start + 80'000, start + 89'000)};
      steps.push_back(std::move(step));
    }
  }
  return steps;
}

using Track = std::pair<int, int>;  // pid, tid

std::map<Track, std::vector<Json>> slices(const Json& trace) {
  std::map<Track, std::vector<Json>> tracks;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") tracks[{event.at("pid"), event.at("tid")}].push_back(event);
  }
  return tracks;
}

TEST(Trace, SlicesOfATrackNestAndAreInOrder) {
  for (const auto& [track, events] : slices(Json::parse(trace_json(sample())))) {
    std::vector<double> open;  // ends of the slices around
    double before = 0;
    for (const Json& event : events) {
      const double begin = event.at("ts");
      const double end = begin + event.at("dur").get<double>();
      EXPECT_GE(begin, before) << event;
      before = begin;
      while (!open.empty() && open.back() <= begin) open.pop_back();
      if (!open.empty()) {
        EXPECT_LE(end, open.back() + 1e-6) << event;
      }
      open.push_back(end);
    }
  }
}

TEST(Trace, EveryRankHasNamedTracks) {
  const Json trace = Json::parse(trace_json(sample()));
  std::map<Track, std::string> names;
  std::map<int, std::string> ranks;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("name") == "thread_name") names[{event.at("pid"), event.at("tid")}] = event.at("args").at("name");
    if (event.at("name") == "process_name") ranks[event.at("pid")] = event.at("args").at("name");
  }
  EXPECT_EQ(ranks, (std::map<int, std::string>{{0, "rank 0"}, {1, "rank 1"}}));
  for (const auto& [track, events] : slices(trace)) {
    ASSERT_TRUE(names.contains(track));
    const bool computes = names[track] == "compute";
    for (const Json& event : events) EXPECT_EQ(event.at("cat") != "exchange", computes) << event;
  }
  EXPECT_EQ((names[{0, 3}]), "exchange (2)");  // wave 1 in and wave 0 out are under way at once
}

TEST(Trace, AlignsRanksAndPutsStepsOneAfterAnother) {
  std::map<std::string, std::vector<double>> begins;
  std::map<std::string, double> end;
  const Json trace = Json::parse(trace_json(sample()));
  for (const auto& [track, events] : slices(trace)) {
    for (const Json& event : events) {
      if (event.at("cat") != "step") continue;
      begins[event.at("name")].push_back(event.at("ts"));
      end[event.at("name")] = event.at("ts").get<double>() + event.at("dur").get<double>();
    }
  }
  EXPECT_THAT(begins["chunked, 2 waves"], testing::ElementsAre(0.0, 0.0));
  EXPECT_THAT(begins["global, 2 waves"], testing::Each(testing::Gt(end["chunked, 2 waves"])));
  EXPECT_EQ(begins["global, 2 waves"].size(), 2U);
}

TEST(Trace, SaysWaveAndBytes) {
  for (const auto& [track, events] : slices(Json::parse(trace_json(sample())))) {
    for (const Json& event : events) {
      if (event.at("cat") == "exchange") {
        EXPECT_EQ(event.at("args"), (Json{{"wave", 1}, {"bytes", 4096}}));
      }
    }
  }
}

TEST(Trace, OfNothingIsStillAFile) { EXPECT_TRUE(Json::parse(trace_json({})).at("traceEvents").empty()); }

}  // namespace
}  // namespace muster::report
