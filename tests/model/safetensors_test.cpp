#include "model/safetensors.h"

#include <gtest/gtest.h>

#include "model/model_support.h"

namespace muster::model {
namespace {

// 8 bytes of length, the header, and `data_bytes` of data.
std::string file_of(const std::string& header, size_t data_bytes) {
  std::string file;
  for (int byte = 0; byte < 8; ++byte) file += static_cast<char>(header.size() >> (8 * byte) & 0xff);
  return file + header + std::string(data_bytes, '\0');
}

std::vector<Tensor> parse(const std::string& file) {
  return parse_safetensors(file, static_cast<int64_t>(file.size()), "x.safetensors");
}

std::string tensor(const std::string& name, const std::string& rest) { return "\"" + name + "\": {" + rest + "}"; }

TEST(Safetensors, ReadsTensorsInNameOrder) {
  const std::vector<Tensor> tensors =
      parse(file_of("{" + tensor("w.b", R"("dtype": "F32", "shape": [2, 3], "data_offsets": [4, 28])") + ", " +
                        tensor("w.a", R"("dtype": "BF16", "shape": [2], "data_offsets": [0, 4])") +
                        R"(, "__metadata__": {"format": "pt"}})" + "   ",
                    28));
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "w.a");
  EXPECT_EQ(tensors[1].name, "w.b");
  EXPECT_EQ(tensors[1].dtype, "F32");
  EXPECT_EQ(tensors[1].shape, (Shape{2, 3}));
}

TEST(Safetensors, NeedsTheHeaderOnlyAndTheSizeOfTheFile) {
  const std::string header =
      "{" + tensor("w", R"("dtype": "F16", "shape": [1000000], "data_offsets": [0, 2000000])") + "}";
  const std::string start = file_of(header, 0);
  EXPECT_EQ(parse_safetensors(start, static_cast<int64_t>(start.size()) + 2000000, "x").size(), 1u);
}

TEST(Safetensors, AcceptsEmptyTensorsAndUnknownDtypes) {
  EXPECT_EQ(
      parse(file_of("{" +
                        tensor("e", R"("dtype": "F32", "shape": [9223372036854775807, 9, 0], "data_offsets": [0, 0])") +
                        ", " + tensor("q", R"("dtype": "F4", "shape": [3], "data_offsets": [0, 2])") + "}",
                    2))
          .size(),
      2u);
}

TEST(Safetensors, NamesWhatIsWrong) {
  const auto error = [](const std::string& file) { return error_of([&] { parse(file); }); };
  const auto header = [&](const std::string& text, size_t data_bytes) { return error(file_of(text, data_bytes)); };
  const auto one = [&](const std::string& rest, size_t data_bytes) {
    return header("{" + tensor("w", rest) + "}", data_bytes);
  };
  expect_error(error("1234567"), {"x.safetensors", "7 bytes"});
  expect_error(error(file_of("{}", 0).substr(0, 9)), {"x.safetensors", "header length 2"});
  expect_error(error("\xff\xff\xff\xff\xff\xff\xff\xff{}"), {"x.safetensors", "18446744073709551615"});
  expect_error(header("[]", 0), {"x.safetensors", "brace"});
  expect_error(header(" {}", 0), {"x.safetensors", "brace"});
  expect_error(header("{\"w\"", 0), {"x.safetensors", "line 1"});
  expect_error(header("{}", 1), {"x.safetensors", "0 bytes", "holds 1"});
  expect_error(header(R"({"w": 1})", 0), {"tensor 'w'", "1"});
  expect_error(one(R"("dtype": "F32", "shape": [2])", 8), {"tensor 'w'", "'data_offsets'"});
  expect_error(one(R"("dtype": 1, "shape": [2], "data_offsets": [0, 8])", 8), {"tensor 'w'", "'dtype'", "1"});
  expect_error(one(R"("dtype": "F32", "shape": [-2], "data_offsets": [0, 8])", 8), {"tensor 'w'", "'shape'", "-2"});
  expect_error(one(R"("dtype": "F32", "shape": [1,1,1,1,1,1,1,1,2], "data_offsets": [0, 8])", 8), {"'w'", "9 dims"});
  expect_error(one(R"("dtype": "F32", "shape": [2], "data_offsets": [8, 0])", 8), {"tensor 'w'", "[8, 0]"});
  expect_error(one(R"("dtype": "F32", "shape": [2], "data_offsets": [0])", 8), {"tensor 'w'", "1 values"});
  expect_error(one(R"("dtype": "F32", "shape": [2], "data_offsets": [0, 4])", 4), {"tensor 'w'", "4 bytes", "need 8"});
  expect_error(one(R"("dtype": "F32", "shape": [2], "data_offsets": [0, 8])", 7),
               {"x.safetensors", "8 bytes", "holds 7"});
  expect_error(one(R"("dtype": "F32", "shape": [2], "data_offsets": [1, 9])", 9), {"tensor 'w'", "byte 1", "hole"});
  expect_error(one(R"("dtype": "F64", "shape": [4294967296, 4294967296], "data_offsets": [0, 8])", 8), {"'w'", "2^63"});
  const std::string eight = R"("dtype": "F32", "shape": [2], "data_offsets": [0, 8])";
  expect_error(header("{" + tensor("w", eight) + ", " + tensor("w", eight) + "}", 8), {"'w'", "twice"});
  expect_error(header("{" + tensor("v", eight) + ", " + tensor("w", eight) + "}", 8), {"tensor 'w'", "within"});
}

const std::string kTwoTensors = file_of(
    "{" + tensor("model.norm.weight", R"("dtype": "F32", "shape": [4], "data_offsets": [0, 16])") + ", " +
        tensor("model.layers.0.mlp.up_proj.weight", R"("dtype": "BF16", "shape": [6, 4], "data_offsets": [16, 64])") +
        "}",
    48 + 16);

ModelOptions llama_options() {
  ModelOptions options;
  options.mesh = "fsdp=2,tp=2";
  options.rules = source_path("examples/rules/hf-llama.json");
  return options;
}

TEST(SafetensorsModel, TakesRolesFromRulesAndDtypesFromTheHeader) {
  const TempFolder folder;
  const Problem problem = load_model(folder.write("model.safetensors", kTwoTensors), llama_options());
  EXPECT_EQ(problem.model, "model.safetensors");
  ASSERT_EQ(problem.parameters.size(), 2u);
  const Parameter& up = problem.parameters[0];
  EXPECT_EQ(up.name, "model.layers.0.mlp.up_proj.weight");
  EXPECT_EQ(up.shape, (Shape{6, 4}));
  EXPECT_EQ(up.dtype, Dtype::kBf16);
  EXPECT_EQ(up.grad_dtype, Dtype::kBf16);
  EXPECT_EQ(up.algorithm, Algorithm::kNorMuon);
  EXPECT_EQ(up.layout.order, (std::vector<int32_t>{1, 0}));
  EXPECT_EQ(problem.parameters[1].algorithm, Algorithm::kAdamW);
  EXPECT_EQ(problem.parameters[1].layout.placements[1], Placement::replicate());
}

TEST(SafetensorsModel, CoversEveryTensorOfALlama) {
  const Rules rules = parse_rules(R"({"rules": []})", "r");
  std::ifstream stream(source_path("examples/rules/hf-llama.json"));
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  std::vector<Tensor> tensors;
  for (const char* matrix : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                             "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
    tensors.push_back({std::string("model.layers.31.") + matrix + ".weight", "BF16", {8, 8}});
  }
  for (const char* norm :
       {"model.layers.31.input_layernorm", "model.layers.31.post_attention_layernorm", "model.norm"}) {
    tensors.push_back({std::string(norm) + ".weight", "BF16", {8}});
  }
  tensors.push_back({"model.embed_tokens.weight", "BF16", {16, 8}});
  tensors.push_back({"lm_head.weight", "BF16", {16, 8}});
  tensors.push_back({"model.layers.31.self_attn.rotary_emb.inv_freq", "F64", {4}});
  BuildOptions options;
  options.mesh = "fsdp=2,tp=2";
  const Problem problem =
      build_problem(model_from_tensors(tensors, parse_rules(text, "hf-llama.json"), "llama"), options);
  validate(problem);
  EXPECT_EQ(problem.parameters.size(), 12u);
  EXPECT_EQ(std::count_if(problem.parameters.begin(), problem.parameters.end(),
                          [](const Parameter& p) { return is_matrix_algorithm(p.algorithm); }),
            7);
  EXPECT_EQ(find(problem, "model.layers.31.mlp.down_proj.weight").layout.placements[1], Placement::shard(1));
  expect_error(error_of([&] { model_from_tensors(tensors, rules, "llama"); }),
               {"tensor 'model.layers.31.self_attn.q_proj.weight'", "no rule"});
}

TEST(SafetensorsModel, RejectsOtherDtypesUnlessTheyAreSkipped) {
  const std::vector<Tensor> tensors = {{"ids", "I64", {3}}, {"w", "F16", {4, 4}}, {"scale", "F32", {}}};
  const auto load = [&](const std::string& rules) {
    return model_from_tensors(tensors, parse_rules(rules, "r"), "x").entries.size();
  };
  expect_error(error_of([&] { load(R"({"rules": [{"match": "*"}]})"); }), {"tensor 'ids'", "'I64'"});
  EXPECT_EQ(load(R"({"rules": [{"match": "ids", "skip": true}, {"match": "*"}]})"), 2u);
}

TEST(SafetensorsModel, NeedsAMeshAndRulesAndKnowsNoLayers) {
  const TempFolder folder;
  const std::string path = folder.write("model.safetensors", kTwoTensors);
  ModelOptions options = llama_options();
  options.mesh.clear();
  expect_error(error_of([&] { load_model(path, options); }), {"model.safetensors", "--mesh"});
  options = llama_options();
  options.rules.clear();
  expect_error(error_of([&] { load_model(path, options); }), {"model.safetensors", "--rules"});
  options = llama_options();
  options.layers = 2;
  expect_error(error_of([&] { load_model(path, options); }), {"--layers 2"});
  options = llama_options();
  options.set = {{"experts", 8}};
  expect_error(error_of([&] { load_model(path, options); }), {"--set", "'experts=8'"});
}

class SafetensorsIndex : public testing::Test {
 protected:
  SafetensorsIndex() {
    folder_.write("one.safetensors", kTwoTensors);
    folder_.write(
        "two.safetensors",
        file_of("{" + tensor("lm_head.weight", R"("dtype": "F16", "shape": [5, 2], "data_offsets": [0, 20])") + "}",
                20));
  }
  Problem load(const std::string& weight_map) {
    return load_model(folder_.write("model.safetensors.index.json",
                                    R"({"metadata": {"total_size": 84}, "weight_map": )" + weight_map + "}"),
                      llama_options());
  }
  std::string error(const std::string& weight_map) {
    return error_of([&] { load(weight_map); });
  }

  TempFolder folder_;
};

TEST_F(SafetensorsIndex, GathersTensorsOfAllShards) {
  const Problem problem = load(R"({"model.norm.weight": "one.safetensors", "lm_head.weight": "two.safetensors",
      "model.layers.0.mlp.up_proj.weight": "one.safetensors"})");
  ASSERT_EQ(problem.parameters.size(), 3u);
  EXPECT_EQ(problem.parameters[0].name, "lm_head.weight");
  EXPECT_EQ(problem.parameters[0].dtype, Dtype::kF16);
}

TEST_F(SafetensorsIndex, NamesWhatIsWrong) {
  expect_error(error(R"({"absent": "one.safetensors"})"), {"one.safetensors", "'absent'"});
  expect_error(error(R"({"w": "three.safetensors"})"), {"three.safetensors"});
  expect_error(error(R"({"w": "../one.safetensors"})"), {"'w'", "'../one.safetensors'"});
  expect_error(error(R"({"w": ".."})"), {"'w'", "'..'"});
  expect_error(error(R"({"w": "/one.safetensors"})"), {"'w'", "'/one.safetensors'"});
  expect_error(error(R"({"w": "a\\b"})"), {"'w'", "'a\\b'"});
  expect_error(error(R"({"w": 1})"), {"'w'", "1"});
  expect_error(error("{}"), {"'weight_map'", "empty"});
  expect_error(error("[]"), {"'weight_map'", "[]"});
}

}  // namespace
}  // namespace muster::model
