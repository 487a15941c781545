#include "plan_text/plan_json.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "plan_text/sample.h"

namespace muster::plan_text {
namespace {

using Json = nlohmann::json;

TEST(PlanJson, HasTheKeysScriptsRelyOn) {
  const Sample sample = make_sample();
  const Json json = Json::parse(plan_json(sample.report()));
  for (const char* key : {"model", "ranks", "strategy", "waves", "collectives", "rounds", "bytes_sent_max",
                          "bytes_sent_total", "padding_bytes", "imbalance", "over_bound", "scratch_bytes_max",
                          "scratch_cap_bytes", "predicted_ms", "plan_ms", "hash"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["model"], "sample");
  EXPECT_EQ(json["waves"], 2);
  EXPECT_EQ(json["predicted_ms"], 0.36);
  EXPECT_EQ(json["plan_ms"], 1.5);
  EXPECT_EQ(json["imbalance"], 1.6);
  EXPECT_EQ(json["hash"], "0000000000abcdef");
  EXPECT_EQ(json["elements"], 8 * 64 * 64 + 4 * 256 * 64 + 64);
  EXPECT_EQ(json["cost"], "test-device");
  EXPECT_FALSE(json.contains("explanation"));
}

TEST(PlanJson, TablesAddUp) {
  const Sample sample = make_sample();
  const Json json = Json::parse(plan_json(sample.report()));
  ASSERT_EQ(json["wave_table"].size(), 2u);
  ASSERT_EQ(json["rank_table"].size(), 4u);
  int64_t matrices = 0;
  for (const Json& wave : json["wave_table"]) {
    for (const Json& shape : wave["shapes"]) matrices += shape["count"].get<int64_t>();
  }
  EXPECT_EQ(matrices, 12);
  EXPECT_EQ(json["rank_table"][3]["compute_ms"], 0.32);
}

TEST(PlanJson, StaysSmallForManyRanksAndWaves) {
  const Sample sample = make_sample({.ranks = 2048, .waves = 100});
  const std::string text = plan_json(sample.report());
  const Json json = Json::parse(text);
  EXPECT_FALSE(json.contains("rank_table"));
  EXPECT_FALSE(json.contains("wave_table"));
  EXPECT_LT(text.size(), 2000u);
}

TEST(PlanJson, SurvivesNamesThatAreNotUtf8) {
  Sample sample = make_sample();
  sample.problem.model = "a\"b\n\xff";
  EXPECT_EQ(Json::parse(plan_json(sample.report()))["model"], "a\"b\n\xef\xbf\xbd");
}

TEST(PlanJson, CarriesAnExplanation) {
  const Sample sample = make_sample();
  const plan::Explanation explanation =
      explain_one(8, {{.rank = 2, .held_elements = 4096, .orthogonalize_ns = 10, .start_ns = 5, .load_ns = 300'000}});
  const Json json = Json::parse(plan_json(sample.report(), {.explanation = &explanation}))["explanation"];
  EXPECT_EQ(json["parameter"], "square");
  EXPECT_EQ(json["layout"], "fsdp: shard(0)");
  EXPECT_EQ(json["matrix_count"], 8);
  EXPECT_EQ(json["matrices"][0]["owner"], 2);
  EXPECT_EQ(json["matrices"][0]["candidates"][0]["cost_ns"], 15);
}

}  // namespace
}  // namespace muster::plan_text
