#include "report/page_timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::report {
namespace {

using Json = nlohmann::ordered_json;

TraceEvent compute(std::string name, int64_t begin, int64_t end) {
  return {.name = std::move(name), .exchange = false, .wave = 0, .begin_ns = begin, .end_ns = end};
}

TraceEvent exchange(std::string name, int64_t begin, int64_t end, int64_t bytes) {
  return {.name = std::move(name), .exchange = true, .wave = 1, .begin_ns = begin, .end_ns = end, .bytes = bytes};
}

// Decodes as the page does: name, beginning and end of every span of a track.
using Span = std::tuple<std::string, int64_t, int64_t>;
std::vector<Span> spans(const Json& timeline, size_t rank, size_t track) {
  std::vector<Span> out;
  const Json flat = timeline.at("ranks").at(rank).at(2).at(track).at(1);
  int64_t at = 0;
  for (size_t i = 0; i < flat.size(); i += 3) {
    const int64_t begin = at + flat[i + 1].get<int64_t>();
    at = begin + flat[i + 2].get<int64_t>();
    out.emplace_back(timeline.at("labels").at(flat[i].get<size_t>()).at(0), begin, at);
  }
  return out;
}

TEST(PageTimeline, KeepsSpansSinceTheStepBegan) {
  const std::vector<TracedStep> steps{
      {3, "a", 1000, 1100, {compute("late", 1050, 1090), compute("pack", 1010, 1020), exchange("in", 1015, 1060, 8)}}};
  const Json timeline = timelines_json(steps).at(0);
  EXPECT_EQ(timeline.at("length_ns"), 100);
  EXPECT_EQ(timeline.at("together_ns"), 0);
  EXPECT_EQ(timeline.at("ranks")[0][0], 3);
  EXPECT_EQ(spans(timeline, 0, 0), (std::vector<Span>{{"pack", 10, 20}, {"late", 50, 90}}));
  EXPECT_EQ(spans(timeline, 0, 1), (std::vector<Span>{{"in", 15, 60}}));
  EXPECT_EQ(timeline.at("labels")[2], (Json{"in", 1, 1, 8}));
}

TEST(PageTimeline, WhatOverlapsGetsAnotherTrack) {
  const std::vector<TracedStep> steps{
      {0, "a", 0, 100, {exchange("x", 0, 50, 1), exchange("y", 20, 60, 1), exchange("z", 50, 70, 1)}}};
  const Json tracks = timelines_json(steps).at(0).at("ranks")[0][2];
  ASSERT_EQ(tracks.size(), 2u);
  EXPECT_EQ(tracks[0][1].size(), 6u);  // x and z
  EXPECT_EQ(tracks[1][1].size(), 3u);
}

TEST(PageTimeline, RanksOfOneNameAreOneStep) {
  const std::vector<TracedStep> steps{{0, "a", 0, 10, {}}, {0, "b", 5, 8, {}}, {1, "a", 7, 19, {}}};
  const Json timelines = timelines_json(steps);
  ASSERT_EQ(timelines.size(), 2u);
  EXPECT_EQ(timelines[0].at("name"), "a");
  EXPECT_EQ(timelines[0].at("ranks").size(), 2u);
  EXPECT_EQ(timelines[0].at("length_ns"), 12);
}

TEST(PageTimeline, TooManySpansArePutTogether) {
  TracedStep step{0, "a", 0, 1'000'000, {}};
  step.events.push_back(compute("long", 0, 500'000));
  for (int64_t i = 0; i < 5000; ++i) step.events.push_back(exchange("short", i * 100, i * 100 + 50, 2));
  const Json timeline = timelines_json(std::vector{step}, 100).at(0);
  EXPECT_GT(timeline.at("together_ns"), 0);
  EXPECT_EQ(spans(timeline, 0, 0), (std::vector<Span>{{"long", 0, 500'000}}));
  const std::vector<Span> shorts = spans(timeline, 0, 1);
  EXPECT_LE(shorts.size(), 99u);
  EXPECT_EQ(std::get<1>(shorts.front()), 0);
  EXPECT_EQ(std::get<2>(shorts.back()), 499'950);
  int64_t bytes = 0;  // none is lost
  const Json flat = timeline.at("ranks")[0][2][1][1];
  for (size_t i = 0; i < flat.size(); i += 3) bytes += timeline.at("labels")[flat[i].get<size_t>()][3].get<int64_t>();
  EXPECT_EQ(bytes, 10'000);
}

TEST(PageTimeline, ThousandsOfRanksTakeFewBytes) {
  std::vector<TracedStep> steps;
  for (int32_t rank = 0; rank < 4096; ++rank) {
    TracedStep step{rank, "a", 0, 1'000'000'000, {}};
    for (int64_t i = 0; i < 100; ++i) {
      step.events.push_back(compute("orthogonalize", i * 10'000'000, i * 10'000'000 + 9'000'000 + rank));
    }
    steps.push_back(std::move(step));
  }
  EXPECT_LT(timelines_json(steps).dump().size(), 8u << 20);
}

}  // namespace
}  // namespace muster::report
