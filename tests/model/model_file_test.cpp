#include <gtest/gtest.h>

#include "model/model_support.h"

namespace muster::model {
namespace {

// A model on fsdp=4,tp=2 whose only parameter has these members.
std::string with(const std::string& members) {
  return R"({"meshes": [{"name": "m", "axes": "fsdp=4,tp=2"}],
             "defaults": {"placements": {"fsdp": {"shard": 0}, "tp": "replicate"}}, "parameters": [{)" +
         members + "}]}";
}

Parameter only(const std::string& members) { return build(with(members)).parameters.at(0); }

TEST(ModelFile, FillsInWhatIsNotSaid) {
  const Problem problem = build(with(R"("name": "w", "shape": [8, 6])"));
  EXPECT_EQ(problem.ranks, 8);
  EXPECT_EQ(problem.wire, Dtype::kBf16);
  EXPECT_FALSE(problem.grad_sync);
  const Parameter& w = problem.parameters.at(0);
  EXPECT_EQ(w.dtype, Dtype::kF32);
  EXPECT_EQ(w.grad_dtype, Dtype::kF32);
  EXPECT_EQ(w.algorithm, Algorithm::kNorMuon);
  EXPECT_EQ(w.norm_axis, NormAxis::kLonger);
  EXPECT_EQ(w.layout.placements, (std::vector<Placement>{Placement::shard(0), Placement::replicate()}));
  EXPECT_TRUE(w.layout.order.empty());
}

TEST(ModelFile, ReadsEveryFieldOfTheModel) {
  const Problem problem =
      build(R"({"name": "x", "source": "made up", "wire": "f32", "grad_sync": true, "groups": [2, 1],
      "ranks": 9, "meshes": [{"name": "m", "axes": "a=2,b=2", "ranks": [7, 5, 3, 1]}],
      "defaults": {"placements": {"a": "replicate", "b": "replicate"}},
      "parameters": [{"name": "w.{}", "layers": 3, "shape": [2, 2]}]})");
  EXPECT_EQ(problem.model, "x");
  EXPECT_EQ(problem.wire, Dtype::kF32);
  EXPECT_TRUE(problem.grad_sync);
  EXPECT_EQ(problem.group_sizes, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(problem.ranks, 9);
  EXPECT_EQ(problem.meshes[0].ranks, (std::vector<int32_t>{7, 5, 3, 1}));
}

TEST(ModelFile, CountsRanksByTheLargestOne) {
  const Problem problem = build(R"({"meshes": [{"name": "m", "axes": "a=2", "ranks": [11, 4]}],
      "parameters": [{"name": "w", "shape": [2, 2], "placements": {"a": "flat"}}]})");
  EXPECT_EQ(problem.ranks, 12);
}

TEST(ModelFile, ReadsEveryFieldOfAParameter) {
  const Parameter w = only(R"("name": "w", "shape": [8, 6], "dtype": "bf16", "grad_dtype": "f16", "algorithm": "muon",
      "norm_axis": "columns", "rows": [5, {"size": 3, "normuon": false, "norm_axis": "rows"}], "columns": [2, 4],
      "output_dim": 1, "scale_shape": "parameter", "multiplier": 0.5)");
  EXPECT_EQ(w.dtype, Dtype::kBf16);
  EXPECT_EQ(w.grad_dtype, Dtype::kF16);
  EXPECT_EQ(w.algorithm, Algorithm::kMuon);
  EXPECT_EQ(w.norm_axis, NormAxis::kColumns);
  EXPECT_EQ(w.matrices.rows, (std::vector<Block>{{5, {}, {}}, {3, false, NormAxis::kRows}}));
  EXPECT_EQ(w.matrices.columns, (std::vector<Block>{{2, {}, {}}, {4, {}, {}}}));
  EXPECT_EQ(w.output_dim, 1);
  EXPECT_EQ(w.scale_shape, ScaleShape::kParameter);
  EXPECT_EQ(w.multiplier, 0.5);
}

TEST(ModelFile, ReadsEveryKindOfPlacement) {
  const auto fsdp = [](const std::string& placement) {
    return only(R"("name": "w", "shape": [8, 6], "placements": {"fsdp": )" + placement + "}").layout.placements[0];
  };
  EXPECT_EQ(fsdp(R"("replicate")"), Placement::replicate());
  EXPECT_EQ(fsdp(R"j("shard(1)")j"), Placement::shard(1));
  EXPECT_EQ(fsdp(R"("flat")"), Placement::flat());
  EXPECT_EQ(fsdp(R"({"flat": true})"), Placement::flat());
  EXPECT_EQ(fsdp(R"({"flat": [40, 0, 1, 7]})"), (Placement{Placement::Kind::kFlat, 0, 1, {40, 0, 1, 7}}));
  EXPECT_EQ(fsdp(R"({"shard": 0, "sizes": [5, 0, 1, 2]})"), (Placement{Placement::Kind::kShard, 0, 1, {5, 0, 1, 2}}));
  EXPECT_EQ(fsdp(R"({"shard": 0, "split_factor": 2})"), (Placement{Placement::Kind::kShard, 0, 2, {}}));
}

TEST(ModelFile, CutsRowsIntoHeadsOfWhatIsRead) {
  EXPECT_EQ(only(R"("name": "w", "shape": [8, 6], "heads": 4)").matrices.rows, std::vector<Block>(4, {2, {}, {}}));
  EXPECT_EQ(only(R"("name": "w", "shape": [8, 6], "column_heads": 3)").matrices.columns,
            std::vector<Block>(3, {2, {}, {}}));
  EXPECT_EQ(only(R"("name": "w", "shape": [8, 6], "view": [2, 12, 2], "heads": 3)").matrices.rows,
            std::vector<Block>(3, {4, {}, {}}));
  const Parameter conv = only(R"("name": "w", "shape": [8, 3, 5], "flatten": true, "heads": 2, "column_heads": 3)");
  EXPECT_EQ(conv.matrices.rows, std::vector<Block>(2, {4, {}, {}}));
  EXPECT_EQ(conv.matrices.columns, std::vector<Block>(3, {5, {}, {}}));
}

TEST(ModelFile, IgnoresMatricesOfElementwiseParameters) {
  EXPECT_EQ(only(R"("name": "w", "shape": [7], "algorithm": "adamw", "heads": 2)").matrices, MatrixSpec());
}

TEST(ModelFile, ExpandsLayers) {
  const auto names = [](const std::string& layers) {
    std::string joined;
    for (const Parameter& parameter :
         build(with(R"("name": "l.{}.w{}", "shape": [4, 4], "layers": )" + layers)).parameters) {
      joined += parameter.name + " ";
    }
    return joined;
  };
  EXPECT_EQ(names("3"), "l.0.w0 l.1.w1 l.2.w2 ");
  EXPECT_EQ(names(R"("1:3,5:6")"), "l.1.w1 l.2.w2 l.5.w5 ");
  EXPECT_EQ(names(R"("3:12:4")"), "l.3.w3 l.7.w7 l.11.w11 ");
  EXPECT_EQ(names(R"("9,4:6")"), "l.9.w9 l.4.w4 l.5.w5 ");
}

TEST(ModelFile, KeepsLayersBelowALimitAndWhatHasNone) {
  BuildOptions options;
  options.layers = 2;
  const Problem problem = build(R"({"meshes": [{"name": "m", "axes": "a=1"}],
      "defaults": {"placements": {"a": "replicate"}}, "groups": [4],
      "parameters": [{"name": "w.{}", "layers": "1:4", "shape": [2, 2]}, {"name": "head", "shape": [2, 2]}]})",
                                options);
  ASSERT_EQ(problem.parameters.size(), 2u);
  EXPECT_EQ(problem.parameters[0].name, "w.1");
  EXPECT_EQ(problem.parameters[1].name, "head");
  EXPECT_TRUE(problem.group_sizes.empty());
  options.layers = -1;
  expect_error(error_of([&] { build(with(R"("name": "w", "shape": [8, 6])"), options); }), {"--layers -1"});
}

TEST(ModelFile, SetsVariables) {
  const std::string text = R"({"variables": {"n": 3, "d": 4}, "meshes": [{"name": "m", "axes": "a=1"}],
      "defaults": {"placements": {"a": "replicate"}},
      "parameters": [{"name": "w", "shape": ["n", "d", 4], "view": ["n", 4, "d"], "rows": [1, 3], "column_heads": "d"}]})";
  EXPECT_EQ(build(text).parameters[0].shape, (Shape{3, 4, 4}));
  BuildOptions options;
  options.set = {{"n", 5}};
  const Parameter w = build(text, options).parameters[0];
  EXPECT_EQ(w.shape, (Shape{5, 4, 4}));
  EXPECT_EQ(w.matrices.view, (Shape{5, 4, 4}));
  EXPECT_EQ(w.matrices.columns.size(), 4u);
  options.set = {{"m", 5}};
  expect_error(error_of([&] { build(text, options); }), {"--set", "'m=5'", "'d', 'n'"});
  options.set = {{"n", 0}};
  expect_error(error_of([&] { build(text, options); }), {"--set", "'n=0'"});
}

TEST(ModelFile, TakesItsMeshFromTheCommand) {
  const std::string parameters = R"("parameters": [{"name": "w", "shape": [8, 4], "mesh": "m",
      "placements": {"fsdp": {"shard": 0}, "tp": {"shard": 1}}}]})";
  BuildOptions options;
  options.mesh = "tp=2,fsdp=3";
  const Problem problem = build(R"({"ranks": 4, "meshes": [{"name": "m", "axes": "fsdp=4"}], )" + parameters, options);
  EXPECT_EQ(problem.ranks, 6);
  EXPECT_EQ(problem.meshes[0].name, "m");
  EXPECT_EQ(problem.meshes[0].axes, (std::vector<MeshAxis>{{"tp", 2}, {"fsdp", 3}}));
  EXPECT_EQ(problem.parameters[0].layout.placements,
            (std::vector<Placement>{Placement::shard(1), Placement::shard(0)}));

  const std::string two = R"({"meshes": [{"name": "m", "axes": "fsdp=4"}, {"name": "n", "axes": "fsdp=4"}], )";
  EXPECT_NO_THROW(build(two + parameters));
  expect_error(error_of([&] { build(two + parameters, options); }), {"--mesh", "'tp=2,fsdp=3'", "2 meshes"});
  expect_error(error_of([&] { build("{" + parameters); }), {"--mesh"});
  expect_error(error_of([&] { build("{" + parameters, options); }), {"'w'", "mesh 'm'"});
}

TEST(ModelFile, MergesPlacementsOverTheDefaultsAxisByAxis) {
  const Parameter w = only(R"("name": "w", "shape": [8, 6], "placements": {"tp": {"shard": 1}, "pp": "flat"})");
  EXPECT_EQ(w.layout.placements, (std::vector<Placement>{Placement::shard(0), Placement::shard(1)}));
}

TEST(ModelFile, OrdersTheAxesThatAreInTheMesh) {
  const auto order = [](const std::string& names) {
    return only(R"("name": "w", "shape": [8, 6], "order": )" + names).layout.order;
  };
  EXPECT_EQ(order(R"(["ep", "tp", "fsdp"])"), (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(order(R"(["tp"])"), (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(order(R"(["fsdp", "tp"])"), std::vector<int32_t>());
}

TEST(ModelFile, TakesTheFirstAlternativeWithEnoughIndices) {
  const auto dim = [](const std::string& shape, const std::string& more) {
    return only(R"("name": "w", "placements": {"fsdp": [{"shard": 0}, {"shard": 1}])" + more +
                R"(}, "order": ["tp", "fsdp"], "shape": )" + shape)
        .layout.placements[0]
        .dim;
  };
  EXPECT_EQ(dim("[4, 9]", ""), 0);
  EXPECT_EQ(dim("[3, 9]", ""), 1);
  EXPECT_EQ(dim("[3, 2]", ""), 1);                         // the last one, though it is too short as well
  EXPECT_EQ(dim("[7, 9]", R"(, "tp": {"shard": 0})"), 0);  // 7 over tp: 4 and 3
  EXPECT_EQ(dim("[6, 9]", R"(, "tp": {"shard": 0})"), 1);
  EXPECT_EQ(dim("[6, 9]", R"(, "tp": {"shard": 0, "sizes": [5, 1]})"), 0);
}

TEST(ModelFile, LoadsFromDiskUnderItsOwnNameOrThatOfTheFile) {
  const TempFolder folder;
  EXPECT_EQ(load_model(folder.write("tiny.json", with(R"("name": "w", "shape": [8, 6])")), {}).model, "tiny");
  expect_error(error_of([&] { load_model(folder.path("absent.json"), {}); }), {"absent.json", "gpt2-small"});
  expect_error(error_of([&] { load_model(folder.path("absent.safetensors"), {}); }), {"absent.safetensors", "--rules"});
}

}  // namespace
}  // namespace muster::model
