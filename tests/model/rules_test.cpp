#include "model/rules.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "model/model_support.h"
#include "model/safetensors.h"

namespace muster::model {
namespace {

TEST(Glob, MatchesStarsAndQuestionMarks) {
  EXPECT_TRUE(base::glob_matches("*", ""));
  EXPECT_TRUE(base::glob_matches("*", "layers.0.q"));
  EXPECT_TRUE(base::glob_matches("layers.*.q", "layers.0.attn.q"));
  EXPECT_TRUE(base::glob_matches("layers.?.q", "layers.7.q"));
  EXPECT_TRUE(base::glob_matches("*a*b*", "xaxbx"));
  EXPECT_TRUE(base::glob_matches("*ab", "aab"));
  EXPECT_FALSE(base::glob_matches("layers.?.q", "layers.12.q"));
  EXPECT_FALSE(base::glob_matches("layers.*.q", "layers.0.q.bias"));
  EXPECT_FALSE(base::glob_matches("", "x"));
  EXPECT_FALSE(base::glob_matches("x?", "x"));
}

TEST(Glob, IsQuickWhereBacktrackingWouldNotEnd) {
  std::string pattern;
  for (int i = 0; i < 300; ++i) pattern += "a*";
  EXPECT_FALSE(base::glob_matches(pattern + "b", std::string(1000, 'a')));
}

constexpr const char* kModel = R"({"meshes": [{"name": "m", "axes": "fsdp=2,tp=2"}],
    "defaults": {"dtype": "bf16", "placements": {"fsdp": {"shard": 0}, "tp": "replicate"}},
    "parameters": [{"name": "a.q", "shape": [4, 4], "heads": 2}, {"name": "a.o", "shape": [4, 4]},
                   {"name": "mlp", "shape": [8, 4]}]})";

Problem ruled(const std::string& text) {
  const Rules rules = parse_rules(text, "rules.json");
  BuildOptions options;
  options.rules = &rules;
  return build(kModel, options);
}

TEST(Rules, OverrideTheFieldsTheyNameAndNoOthers) {
  const Problem problem = ruled(R"({"rules": [
      {"match": "a.*", "algorithm": "muon", "placements": {"tp": {"shard": 1}}},
      {"match": "*q", "algorithm": "lion"}]})");
  const Parameter& q = find(problem, "a.q");
  EXPECT_EQ(q.algorithm, Algorithm::kMuon);  // the first match
  EXPECT_EQ(q.dtype, Dtype::kBf16);
  EXPECT_EQ(q.matrices.rows.size(), 2u);
  EXPECT_EQ(q.layout.placements, (std::vector<Placement>{Placement::shard(0), Placement::shard(1)}));
  EXPECT_EQ(find(problem, "mlp").algorithm, Algorithm::kNorMuon);
  EXPECT_EQ(find(problem, "mlp").layout.placements[1], Placement::replicate());
}

TEST(Rules, LeaveParametersOut) {
  EXPECT_EQ(ruled(R"({"rules": [{"match": "a.?", "skip": true}]})").parameters.size(), 1u);
  expect_error(error_of([] { ruled(R"({"rules": [{"match": "*", "skip": true}]})"); }), {"no parameters"});
}

TEST(Rules, ReplaceOneKindOfCutByAnother) {
  EXPECT_EQ(find(ruled(R"({"rules": [{"match": "a.q", "rows": [1, 3]}]})"), "a.q").matrices.rows.size(), 2u);
  EXPECT_TRUE(find(ruled(R"({"rules": [{"match": "a.q", "rows": []}]})"), "a.q").matrices.rows.empty());
}

TEST(Rules, GiveDefaultsToTensorsOnly) {
  EXPECT_EQ(find(ruled(R"({"defaults": {"algorithm": "lion"}, "rules": []})"), "mlp").algorithm, Algorithm::kNorMuon);
}

// A misspelt pattern left every parameter as it was, without a word.
TEST(Rules, ThatMatchNothingAreErrors) {
  expect_error(error_of([] { ruled(R"({"rules": [{"match": "a.*"}, {"match": "b.*", "algorithm": "muon"}]})"); }),
               {"rules.json", "rule 'b.*'", "matches no parameter"});
  EXPECT_EQ(ruled(R"({"rules": [{"match": "b.*", "optional": true, "algorithm": "muon"}]})").parameters.size(), 3u);
  EXPECT_EQ(ruled(R"({"rules": [{"match": "*"}, {"match": "a.q"}]})").parameters.size(), 3u)
      << "a rule behind one that matches first is not a misspelt one";
  const Rules wrong = parse_rules(R"({"rules": [{"match": "a"}, {"match": "aa", "algorithm": "muon"}]})", "r.json");
  const std::vector<Tensor> tensors{{"a", "F32", {2, 2}}};
  expect_error(error_of([&] { model_from_tensors(tensors, wrong, "x"); }), {"r.json", "rule 'aa'"});
}

// The error of a rule about a model of so many layers, of which two are kept.
std::string two_layers_ruled(const std::string& layers, const std::string& pattern) {
  const std::string model = R"({"meshes": [{"name": "m", "axes": "fsdp=2"}], "parameters": [
      {"name": "l.{}.w", "layers": )" +
                            layers + R"(, "shape": [4, 4], "placements": {"fsdp": {"shard": 0}}}]})";
  const Rules rules = parse_rules(R"({"rules": [{"match": ")" + pattern + R"(", "algorithm": "muon"}]})", "rules.json");
  BuildOptions options;
  options.rules = &rules;
  options.layers = 2;
  return error_of([&] { EXPECT_EQ(build(model, options).parameters.size(), 2u); });
}

TEST(Rules, MayBeAboutLayersThatAreLeftOut) {
  EXPECT_EQ(two_layers_ruled("8", "l.7.w"), "");
  expect_error(two_layers_ruled("8", "l.8.w"), {"rule 'l.8.w'"});
  // A short text may ask for billions of layers: looking at all of them would not end.
  EXPECT_EQ(two_layers_ruled("2000000000", "l.1.w"), "");
  EXPECT_EQ(two_layers_ruled("2000000000", "l.1999999999.w"), "");
}

TEST(Rules, NameTheRuleThatIsWrong) {
  const auto error = [](const std::string& text) { return error_of([&] { parse_rules(text, "rules.json"); }); };
  expect_error(error("{"), {"rules.json", "line 1"});
  expect_error(error("{}"), {"rules.json", "'rules'"});
  expect_error(error(R"({"rules": {}})"), {"rules.json", "'rules'", "an object"});
  expect_error(error(R"({"rules": [{"algorithm": "muon"}]})"), {"rules.json", "'match'"});
  expect_error(error(R"({"rules": [{"match": ""}]})"), {"rules.json", "match"});
  expect_error(error(R"({"rules": [{"match": "a*", "shape": [2]}]})"), {"rule 'a*'", "'shape'"});
  expect_error(error(R"({"rules": [{"match": "a*", "layers": 2}]})"), {"rule 'a*'", "'layers'"});
  expect_error(error(R"({"rules": [{"match": "a*", "skip": 1}]})"), {"rule 'a*'", "'skip'", "1"});
  expect_error(error(R"({"rules": [{"match": "a*", "optional": "yes"}]})"), {"rule 'a*'", "'optional'", "yes"});
  expect_error(error(R"({"defaults": {"skip": true}, "rules": []})"), {"defaults", "'skip'"});
  expect_error(error(R"({"rule": [], "rules": []})"), {"rules.json", "'rule'"});
}

TEST(Rules, FilesThatCannotBeReadAreNamed) {
  ModelOptions options;
  options.mesh = "fsdp=2";
  options.rules = "no/such/rules.json";
  expect_error(error_of([&] { load_model("gpt2-small", options); }), {"no/such/rules.json"});
}

}  // namespace
}  // namespace muster::model
