#include <gtest/gtest.h>

#include "model/model_support.h"

namespace muster::model {
namespace {

struct Case {
  const char* name;
  std::string text;
  std::vector<std::string> parts;  // of the message
};

void PrintTo(const Case& c, std::ostream* stream) { *stream << c.text.substr(0, 200); }

std::string model(const std::string& meshes, const std::string& parameters) {
  return R"({"variables": {"n": 4}, "meshes": [)" + meshes + R"(], "parameters": [)" + parameters + "]}";
}

// One parameter 'w' on a=2,b=3 with these members more.
std::string parameter(const std::string& members) {
  return model(R"({"name": "m", "axes": "a=2,b=3"})",
               R"({"name": "w", "placements": {"a": {"shard": 0}, "b": "replicate"})" +
                   (members.empty() ? members : ", " + members) + "}");
}

std::string mesh(const std::string& members) {
  return model("{" + members + "}",
               R"({"name": "w", "shape": [2, 2], "placements": {"a": {"shard": 0}, "b": "flat"}})");
}

std::string placement(const std::string& json) {
  return model(R"({"name": "m", "axes": "a=2"})",
               R"({"name": "w", "shape": [4, 6], "placements": {"a": )" + json + "}}");
}

class BadModel : public testing::TestWithParam<Case> {};

TEST_P(BadModel, GivesOneLineThatNamesIt) {
  expect_error(error_of([&] { build(GetParam().text); }), GetParam().parts);
}

std::string test_name(const testing::TestParamInfo<Case>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(
    Text, BadModel,
    testing::Values(Case{"Nothing", "", {"test.json", "line 1, column 1"}},
                    Case{"CutShort", "{\"name\":\n \"x\", ", {"test.json", "line 2"}},
                    Case{"NotAnObject", "[1]", {"test.json", "an array"}},
                    Case{"KeyGivenTwice", R"({"name": "a", "name": "b"})", {"test.json", "'name'", "twice"}},
                    Case{"NumberTooLarge", R"({"name": 1e999})", {"test.json", "number"}},
                    Case{"NestedWithoutEnd", std::string(1000000, '['), {"test.json", "nested"}},
                    Case{"NotUtf8", "{\"name\": \"\xff\"}", {"test.json", "line 1"}},
                    Case{"NoParameters", "{}", {"test.json", "'parameters'"}},
                    Case{"EmptyParameters", model(R"({"name": "m", "axes": "a=2"})", ""), {"no parameters"}},
                    Case{"UnknownKey", R"({"modle": 1, "parameters": []})", {"test.json", "'modle'"}},
                    Case{"BadWire", R"({"wire": "f64", "parameters": []})", {"'wire'", "'f64'"}},
                    Case{"BadGroups", R"({"groups": [1, 0], "parameters": []})", {"'groups'", "not 0"}},
                    Case{"BadVariable", R"({"variables": {"n": 0}, "parameters": []})", {"'n'", "not 0"}},
                    Case{"BadRanks", R"({"ranks": 1048577, "parameters": []})", {"'ranks'", "1048577"}}),
    test_name);

INSTANTIATE_TEST_SUITE_P(
    Meshes, BadModel,
    testing::Values(
        Case{"AxisTwice", mesh(R"("name": "m", "axes": "a=2,b=3,a=2")"), {"mesh 'm'", "'a'", "twice"}},
        Case{"AxisOfSizeZero", mesh(R"("name": "m", "axes": "a=0")"), {"mesh 'm'", "'a'", "'0'"}},
        Case{"AxisWithoutSize", mesh(R"("name": "m", "axes": "a")"), {"mesh 'm'", "'a'"}},
        Case{"NegativeAxis", mesh(R"("name": "m", "axes": "a=-2")"), {"mesh 'm'", "'-2'"}},
        Case{"NamelessAxis", mesh(R"("name": "m", "axes": "=2")"), {"mesh 'm'", "axis name"}},
        Case{"TooManyRanks", mesh(R"("name": "m", "axes": "a=1024,b=129")"), {"mesh 'm'", "131072"}},
        Case{"NoAxes", mesh(R"("name": "m")"), {"mesh 'm'", "'axes'"}},
        Case{"NoName", mesh(R"("axes": "a=2")"), {"mesh", "'name'"}},
        Case{"WrongRankCount", mesh(R"("name": "m", "axes": "a=2,b=2", "ranks": [0, 1, 2])"), {"mesh 'm'", "3", "4"}},
        Case{"RankTwice", mesh(R"("name": "m", "axes": "a=2,b=1", "ranks": [1, 1])"), {"mesh 'm'", "rank 1"}},
        Case{"RankTooLarge", mesh(R"("name": "m", "axes": "a=1", "ranks": [131072])"), {"mesh 'm'", "131072"}},
        Case{"MeshTwice", mesh(R"("name": "m", "axes": "a=2"}, {"name": "m", "axes": "b=2")"), {"'m'", "twice"}},
        Case{"UnknownKey", mesh(R"("name": "m", "axes": "a=2", "size": 2)"), {"mesh 'm'", "'size'"}},
        Case{"RanksBelowTheMesh",
             R"({"ranks": 2, "meshes": [{"name": "m", "axes": "a=3"}],
                 "parameters": [{"name": "w", "shape": [2, 2], "placements": {"a": "flat"}}]})",
             {"mesh 'm'", "rank 2", "'ranks' is 2"}}),
    test_name);

INSTANTIATE_TEST_SUITE_P(
    Parameters, BadModel,
    testing::Values(
        Case{"NoShape", parameter(""), {"parameter 'w'", "'shape'"}},
        Case{"EmptyShape", parameter(R"("shape": [])"), {"parameter 'w'", "[]"}},
        Case{"ZeroDim", parameter(R"("shape": [4, 0])"), {"parameter 'w'", "'shape'", "not 0"}},
        Case{"NegativeDim", parameter(R"("shape": [-4, 4])"), {"parameter 'w'", "not -4"}},
        Case{"FloatDim", parameter(R"("shape": [4.0, 4])"), {"parameter 'w'", "not 4.0"}},
        Case{"DimPast63Bits", parameter(R"("shape": [9223372036854775808])"), {"'w'", "9223372036854775808"}},
        Case{"ElementsPast63Bits", parameter(R"("shape": [4294967296, 4294967296])"), {"parameter 'w'", "4294967296"}},
        Case{"ColumnsPast63Bits",
             parameter(R"("shape": [4, 4294967296, 4294967296], "flatten": true, "column_heads": 2)"),
             {"parameter 'w'", "2^63"}},
        Case{"NineDims", parameter(R"("shape": [1,1,1,1,1,1,1,1,1])"), {"parameter 'w'", "9 dims"}},
        Case{"UnknownVariable", parameter(R"("shape": ["k", 4])"), {"parameter 'w'", "'k'"}},
        Case{"UnknownKey", parameter(R"("shape": [4, 4], "head": 2)"), {"parameter 'w'", "'head'"}},
        Case{"BadDtype", parameter(R"("shape": [4, 4], "dtype": "f8")"), {"parameter 'w'", "'dtype'", "'f8'"}},
        Case{"BadAlgorithm", parameter(R"("shape": [4, 4], "algorithm": "sgd")"), {"parameter 'w'", "'sgd'", "lion"}},
        Case{"BadNormAxis", parameter(R"("shape": [4, 4], "norm_axis": 1)"), {"parameter 'w'", "'norm_axis'", "1"}},
        Case{"RowsDoNotSum", parameter(R"("shape": [4, 4], "rows": [1, 2])"), {"parameter 'w'", "[1,2]", "4"}},
        Case{"RowsAndHeads", parameter(R"("shape": [4, 4], "rows": [4], "heads": 2)"), {"'w'", "'rows'", "'heads'"}},
        Case{"HeadsDoNotDivide", parameter(R"("shape": [4, 4], "heads": 3)"), {"parameter 'w'", "4 rows", "3 heads"}},
        Case{"ColumnHeadsDoNotDivide", parameter(R"("shape": [4, 5], "column_heads": 2)"), {"'w'", "5 columns"}},
        Case{"TooManyHeads", parameter(R"("shape": [65537, 1], "heads": 65537)"), {"parameter 'w'", "65537"}},
        Case{"HeadsOfAVector", parameter(R"("shape": [4], "heads": 2)"), {"parameter 'w'", "1 dim"}},
        Case{"VectorOnMuon", parameter(R"("shape": [4], "algorithm": "muon")"), {"parameter 'w'"}},
        Case{"BadBlock", parameter(R"("shape": [4, 4], "rows": [{"size": 4, "muon": true}])"), {"'w'", "'muon'"}},
        Case{"ViewOfAnotherSize", parameter(R"("shape": [4, 4], "view": [3, 5])"), {"parameter 'w'"}},
        Case{"BadScaleShape",
             parameter(R"("shape": [4, 4], "scale_shape": "shard")"),
             {"'w'", "'scale_shape'", "shard", "block, parameter"}},
        Case{"BadOutputDim", parameter(R"("shape": [4, 4], "output_dim": 2)"), {"'w'", "'output_dim'", "not 2"}},
        Case{"BadMultiplier", parameter(R"("shape": [4, 4], "multiplier": -1)"), {"'w'", "'multiplier'", "-1"}},
        Case{"BadFlatten", parameter(R"("shape": [4, 4], "flatten": 1)"), {"'w'", "'flatten'", "not 1"}},
        Case{"UnknownMesh", parameter(R"("shape": [4, 4], "mesh": "k")"), {"parameter 'w'", "mesh 'k'"}},
        Case{"OrderNamesAnAxisTwice", parameter(R"("shape": [4, 4], "order": ["a", "a"])"), {"'w'", "'a'", "twice"}},
        Case{"GroupsDoNotSum",
             R"({"groups": [2], "meshes": [{"name": "m", "axes": "a=2"}],
                 "parameters": [{"name": "w", "shape": [4, 4], "placements": {"a": "flat"}}]})",
             {"'groups'", "1 matrix"}},
        Case{"LayersWithoutIndex", parameter(R"("shape": [4, 4], "layers": 2)"), {"parameter 'w'", "{}"}}),
    test_name);

INSTANTIATE_TEST_SUITE_P(
    Placements, BadModel,
    testing::Values(
        Case{"AxisWithoutPlacement",
             model(R"({"name": "m", "axes": "a=2,b=2"})",
                   R"({"name": "w", "shape": [4, 4], "placements": {"a": {"shard": 0}}})"),
             {"parameter 'w'", "axis 'b'"}},
        Case{"DimTheTensorLacks", placement(R"({"shard": 2})"), {"parameter 'w'", "axis 'a'", "dim 2", "2 dims"}},
        Case{"DimNoTensorHas", placement(R"j("shard(8)")j"), {"parameter 'w'", "axis 'a'", "'shard(8)'"}},
        Case{"UnknownWord", placement(R"("split")"), {"parameter 'w'", "axis 'a'", "'split'"}},
        Case{"SizesDoNotSum", placement(R"({"shard": 0, "sizes": [1, 1]})"), {"parameter 'w'"}},
        Case{"TooFewSizes", placement(R"({"shard": 0, "sizes": [4]})"), {"parameter 'w'"}},
        Case{"FlatSizesDoNotSum", placement(R"({"flat": [1, 1]})"), {"parameter 'w'"}},
        Case{"NegativeSize", placement(R"({"flat": [-1, 25]})"), {"parameter 'w'", "'flat'", "-1"}},
        Case{"FlatFalse", placement(R"({"flat": false})"), {"parameter 'w'", "'flat'"}},
        Case{"UnknownKey", placement(R"({"shard": 0, "size": 2})"), {"parameter 'w'", "axis 'a'", "'size'"}},
        Case{"NeitherShardNorFlat", placement("{}"), {"parameter 'w'", "axis 'a'", "'shard'"}},
        Case{"NoAlternatives", placement("[]"), {"parameter 'w'", "axis 'a'", "[]"}},
        Case{"AlternativeNotAShard", placement(R"([{"shard": 0}, "replicate"])"), {"'w'", "axis 'a'", "'replicate'"}}),
    test_name);

Case layers_case(const char* name, const std::string& layers, const std::string& part) {
  return {name,
          model(R"({"name": "m", "axes": "a=2"})",
                R"({"name": "w.{}", "shape": [4, 4], "placements": {"a": "replicate"}, "layers": )" + layers + "}"),
          {"parameter 'w.", part}};
}

INSTANTIATE_TEST_SUITE_P(
    Layers, BadModel,
    testing::Values(layers_case("Zero", "0", "not 0"), layers_case("Float", "2.5", "not 2.5"),
                    layers_case("NoEnd", R"("3:")", "'3:'"), layers_case("Negative", R"("-1:3")", "'-1'"),
                    layers_case("SelectsNothing", R"("3:3")", "'3:3'"), layers_case("StepZero", R"("0:3:0")", "step 0"),
                    layers_case("FourNumbers", R"("0:3:1:1")", "'0:3:1:1'"), layers_case("Words", R"("all")", "'all'"),
                    layers_case("Overlapping", R"("0:3,2:4")", "'w.2'"),
                    layers_case("AMillionAndOne", "1000001", "1000000")),
    test_name);

TEST(BadModelNames, AreQuotedOnOneLineAndCut) {
  const auto named = [](const std::string& name) {
    return error_of(
        [&] { build(model(R"({"name": "m", "axes": "a=2"})", R"({"name": ")" + name + R"(", "shape": [4, 4]})")); });
  };
  expect_error(named("a\\nb"), {"'a\\x0ab'", "control character"});
  expect_error(named(""), {"empty"});
  expect_error(named(std::string(1025, 'x')), {"1025"});
  EXPECT_LT(named(std::string(100000, 'x')).size(), 400u);
  EXPECT_LT(named(std::string(1023, 'x') + "\\u00e9").size(), 400u);
}

TEST(BadModelSizes, StopBeforeTheMemoryIsFull) {
  // 10,000 layers of 65,536 heads: a few bytes that ask for 10 GiB.
  expect_error(error_of([] {
                 build(model(R"({"name": "m", "axes": "a=2"})",
                             R"({"name": "w.{}", "layers": 10000, "shape": [65536, 1], "heads": 65536,
                                 "placements": {"a": "replicate"}})"));
               }),
               {"parameter 'w.", "MiB"});
}

TEST(BadMeshOption, IsNamed) {
  const auto with_mesh = [](const std::string& mesh) {
    BuildOptions options;
    options.mesh = mesh;
    return error_of([&] { build(R"({"parameters": [{"name": "w", "shape": [4, 4]}]})", options); });
  };
  expect_error(with_mesh("fsdp=0"), {"--mesh", "'fsdp'", "'0'"});
  expect_error(with_mesh("fsdp"), {"--mesh", "'fsdp'"});
  expect_error(with_mesh("fsdp=2,fsdp=2"), {"--mesh", "'fsdp'", "twice"});
  expect_error(with_mesh("fsdp=2,"), {"--mesh", "''"});
  expect_error(with_mesh("fsdp=99999999999999999999"), {"--mesh", "'99999999999999999999'"});
  expect_error(with_mesh("f sdp=2"), {"--mesh", "'f sdp'"});
}

}  // namespace
}  // namespace muster::model
