#include "report/plan_page.h"

#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan_text/sample.h"
#include "report/page_support.h"

namespace muster::report {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<int32_t> matrices_of_layers(const PlanMap::Class& c) {
  std::vector<int32_t> out;
  for (const PlanMap::Layer& layer : c.layers) out.push_back(layer.matrices);
  return out;
}

Parameter matrix(std::string name, Shape shape) {
  Parameter parameter;
  parameter.name = std::move(name);
  parameter.shape = std::move(shape);
  parameter.layout.placements = {Placement::shard(0)};
  return parameter;
}

// Two layers with experts by name, and a block that is another shape in the second.
plan_text::Sample layers() {
  plan_text::Sample sample = plan_text::make_sample({.ranks = 2, .waves = 2});
  sample.problem.parameters = {matrix("l.0.e.0", {8, 4}), matrix("l.0.e.1", {8, 4}),  matrix("l.0.o", {4, 4}),
                               matrix("l.1.e.0", {8, 4}), matrix("l.1.o", {2, 4, 4}), matrix("head", {4, 4})};
  sample.plan.owner = {0, 1, 0, 1, 0, 1, 0};
  sample.plan.wave = {0, 0, 1, 0, 1, 1, 1};
  return sample;
}

TEST(PlanPage, MatricesAlikeAreAClassAndNumbersAreLayers) {
  const plan_text::Sample sample = layers();
  const PlanMap map = plan_map(sample.report(), "global");
  ASSERT_EQ(map.classes.size(), 3u);
  EXPECT_EQ(map.classes[0].name, "l.{}.e.{}");
  EXPECT_EQ(map.classes[0].shape, "8×4");
  EXPECT_EQ(map.classes[0].layers[1].name, "l.1");
  EXPECT_THAT(matrices_of_layers(map.classes[0]), ElementsAre(2, 1));
  EXPECT_EQ(map.classes[1].name, "l.{}.o");
  EXPECT_THAT(matrices_of_layers(map.classes[1]), ElementsAre(1, 2));
  EXPECT_EQ(map.classes[2].layers[0].name, "head");
  EXPECT_THAT(map.owner, ElementsAre(0, 1, 1, 0, 0, 1, 0));
  EXPECT_THAT(map.wave, ElementsAre(0, 0, 0, 1, 1, 1, 1));
}

TEST(PlanPage, ZeroMatricesAreAClassOfTheirOwn) {
  plan_text::Sample sample = layers();
  sample.plan.waves[1].zeros = {{.like = 2, .owner = 1}};
  const PlanMap map = plan_map(sample.report(), "chunked");
  EXPECT_EQ(map.classes.back().name, "zero matrices");
  EXPECT_EQ(map.classes.back().layers[0].name, "4×4");
  EXPECT_EQ(map.owner.back(), 1);
  EXPECT_EQ(map.wave.back(), 1);
}

TEST(PlanPage, EachReplicaHasAnOwnerOfItsOwn) {
  plan_text::Sample sample = plan_text::make_sample({.ranks = 4, .waves = 1});
  sample.problem.meshes = {{"world", {{"replicate", 2}, {"fsdp", 2}}, {}}};
  for (Parameter& parameter : sample.problem.parameters) {
    parameter.layout.placements = {Placement::replicate(), Placement::shard(0)};
  }
  sample.plan.owner.assign(12, 1);
  sample.plan.each_replica.assign(12, false);
  sample.plan.each_replica[5] = true;
  const PlanMap map = plan_map(sample.report(), "global");
  EXPECT_EQ(map.repeated[4], -1);
  ASSERT_EQ(map.repeated[5], 0);
  EXPECT_THAT(map.replicas[0], ElementsAre(ElementsAre(1), ElementsAre(3)));
}

TEST(PlanPage, ManyWavesAreCut) {
  const plan_text::Sample sample = plan_text::make_sample({.ranks = 3, .waves = 500});
  const PlanMap map = plan_map(sample.report(), "per_matrix");
  EXPECT_EQ(map.wave_count, 500);
  ASSERT_EQ(map.waves.size(), 64u);
  EXPECT_EQ(map.waves[55].index, 55);
  EXPECT_EQ(map.waves[56].index, 492);
  EXPECT_EQ(map.waves.back().index, 499);
}

TEST(PlanPage, LoadsBeforeStandBeforeLoadsAfter) {
  const plan_text::Sample sample = plan_text::make_sample();
  std::vector<Alternative> others{{"chunked", sample.summary}, {"routed", sample.summary}};
  others[0].summary.ranks[0].compute_ns = 7;
  const Page page = plan_page(sample.report(), others);
  ASSERT_EQ(page.loads.size(), 3u);
  EXPECT_EQ(page.loads[0].strategy, "chunked");
  EXPECT_EQ(page.loads[0].compute_ns[0], 7);
  EXPECT_EQ(page.loads[2].strategy, "global");
  EXPECT_THAT(page.loads[2].exchange_ns, ElementsAre(20'000, 40'000, 60'000, 80'000));
  EXPECT_EQ(page.strategies.back().strategy, "global");
  EXPECT_EQ(page.strategies.back().bytes_sent, sample.summary.bytes_sent_total);
  EXPECT_EQ(plan_page(sample.report(), {}).loads.size(), 1u);
}

TEST(PlanPage, SaysWhatWasPlanned) {
  const plan_text::Sample sample = plan_text::make_sample();
  const Page page = plan_page(sample.report(), {});
  EXPECT_EQ(page.title, "sample on 4 ranks");
  EXPECT_THAT(page.subtitle, HasSubstr("mesh fsdp=4 · 3 parameters"));
  EXPECT_THAT(page.subtitle, HasSubstr("cost table test-device · hash 0000000000abcdef"));
  std::map<std::string, Figure> facts;
  for (const Figure& fact : page.facts) facts.emplace(fact.key, fact);
  EXPECT_EQ(std::get<int64_t>(facts.at("predicted_ms").value), 360'000);
  EXPECT_EQ(std::get<int64_t>(facts.at("bytes_sent_total").value), 12 << 20);
  EXPECT_DOUBLE_EQ(std::get<double>(facts.at("imbalance").value), 1.6);
}

}  // namespace
}  // namespace muster::report
