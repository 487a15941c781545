#include <map>

#include <gtest/gtest.h>

#include "model/model_support.h"
#include "model/preset_data.h"

namespace muster::model {
namespace {

using Counts = std::map<Shape, int>;

struct Census {
  int64_t elements = 0;
  Counts matrices;     // parameters on Muon or NorMuon, by shape
  Counts elementwise;  // on AdamW or Lion
};

Problem load(const std::string& preset, const std::string& mesh) {
  ModelOptions options;
  options.mesh = mesh;
  return load_model(preset, options);
}

Census count(const std::string& preset) {
  Census census;
  for (const Parameter& parameter : load(preset, "fsdp=1").parameters) {
    census.elements += element_count(parameter.shape);
    ++(is_matrix_algorithm(parameter.algorithm) ? census.matrices : census.elementwise)[parameter.shape];
  }
  return census;
}

TEST(Presets, AreTheFilesAndEachSaysWhereItsShapesComeFrom) {
  const std::vector<Preset> all = presets();
  ASSERT_EQ(all.size(), preset_texts().size());
  std::vector<std::string> names;
  for (const Preset& preset : all) {
    names.push_back(preset.name);
    EXPECT_FALSE(preset.source.empty()) << preset.name;
    EXPECT_EQ(load(preset.name, "fsdp=2").model, preset.name);
  }
  for (const char* name :
       {"gpt2-small", "llama-7b", "modded-nanogpt", "modded-nanogpt-168", "moe-397b", "qwen3-moe-30b"}) {
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
  }
}

TEST(Presets, LoadOnEveryAxisTheyGiveAMeaning) {
  for (const char* name : {"gpt2-small", "llama-7b", "moe-397b", "qwen3-moe-30b"}) {
    for (const char* mesh : {"fsdp=7", "tp=3", "ep=5", "replicate=2", "replicate=2,fsdp=3,ep=5,tp=2", "fsdp=4096"}) {
      EXPECT_NO_THROW(load(name, mesh)) << name << " on " << mesh;
    }
  }
  for (const char* name : {"modded-nanogpt", "modded-nanogpt-168"}) {
    for (const char* mesh : {"replicate=8", "fsdp=8", "replicate=2,fsdp=4"}) EXPECT_NO_THROW(load(name, mesh)) << name;
  }
}

TEST(Presets, RejectAnAxisThatNoRuleExplains) {
  expect_error(error_of([] { load("moe-397b", "fsdp=4,pp=2"); }), {"'embed_tokens'", "'pp'"});
  expect_error(error_of([] { load("modded-nanogpt", "tp=2"); }), {"'smear_gate.weight'", "'tp'"});
}

TEST(Presets, Gpt2SmallHas72MatricesAnd124MillionParameters) {
  const Census census = count("gpt2-small");
  EXPECT_EQ(census.matrices, (Counts{{{768, 768}, 48}, {{3072, 768}, 12}, {{768, 3072}, 12}}));
  EXPECT_EQ(census.elementwise, (Counts{{{50257, 768}, 1}, {{1024, 768}, 1}, {{768}, 110}, {{3072}, 12}}));
  EXPECT_EQ(census.elements, 124'439'808);
}

TEST(Presets, ModdedNanogptHasTheGroupsOfNumber132) {
  const Problem problem = load("modded-nanogpt", "replicate=8");
  EXPECT_TRUE(problem.grad_sync);
  EXPECT_EQ(problem.group_sizes, (std::vector<int64_t>{1, 10, 16, 16}));
  EXPECT_EQ(count("modded-nanogpt").matrices, (Counts{{{1, 12}, 1}, {{6, 12}, 10}, {{768, 3072}, 32}}));
  EXPECT_EQ(count("modded-nanogpt").elementwise, (Counts{{{50304, 768}, 5}, {{72}, 1}}));
  // The order in which the groups take them: gates, attention, MLP.
  EXPECT_EQ(problem.parameters[0].name, "smear_gate.weight");
  EXPECT_EQ(problem.parameters[1].name, "blocks.1.attn.attn_gate.weight");
  EXPECT_EQ(problem.parameters[11].name, "blocks.1.attn.qkvo_w");
  EXPECT_EQ(problem.parameters[20].name, "blocks.11.attn.qkvo_w");
  EXPECT_EQ(problem.parameters[21].name, "blocks.1.mlp.c_fc");
  EXPECT_EQ(problem.parameters[11].matrices.view, (Shape{4, 768, 768}));
  EXPECT_EQ(problem.parameters[21].multiplier, 2);
  EXPECT_EQ(problem.parameters[21].grad_dtype, Dtype::kF32);
  EXPECT_EQ(find(problem, "embed.weight").grad_dtype, Dtype::kBf16);
}

TEST(Presets, ModdedNanogpt168HasItsParameterTable) {
  const Problem problem = load("modded-nanogpt-168", "replicate=8");
  const Census census = count("modded-nanogpt-168");
  EXPECT_EQ(census.matrices, (Counts{{{1, 12}, 1}, {{6, 12}, 10}, {{3072, 768}, 32}}));
  EXPECT_EQ(census.elementwise, (Counts{{{50304, 768}, 5}, {{62}, 1}}));
  const Parameter& gate = find(problem, "blocks.11.attn.attn_gate.weight");
  EXPECT_EQ(gate.dtype, Dtype::kBf16);
  EXPECT_EQ(gate.norm_axis, NormAxis::kRows);
  EXPECT_EQ(find(problem, "smear_gate.weight").norm_axis, NormAxis::kRows);
  EXPECT_EQ(find(problem, "blocks.1.attn.qkvo_w").matrices.rows, std::vector<Block>(4, {768, {}, {}}));
  EXPECT_EQ(find(problem, "blocks.1.mlp.c_fc").multiplier, 1);
  EXPECT_EQ(find(problem, "blocks.1.mlp.c_proj").multiplier, 2);
}

TEST(Presets, Llama7bHasItsPublishedSize) {
  const Census census = count("llama-7b");
  EXPECT_EQ(census.matrices, (Counts{{{4096, 4096}, 128}, {{11008, 4096}, 64}, {{4096, 11008}, 32}}));
  EXPECT_EQ(census.elements, 6'738'415'616);
}

TEST(Presets, Qwen3Moe30bHasItsPublishedSize) {
  const Census census = count("qwen3-moe-30b");
  EXPECT_EQ(census.elements, 30'532'122'624);
  EXPECT_EQ(census.matrices.at({128, 1536, 2048}), 48);
  EXPECT_EQ(census.matrices.at({128, 2048, 768}), 48);
  EXPECT_EQ(census.elementwise.at({128, 2048}), 48);
}

TEST(Presets, Moe397bHas61440ExpertMatricesOf386BillionParameters) {
  int64_t experts = 0;
  int64_t elements = 0;
  int full_attention = 0;
  int linear_attention = 0;
  for (const Parameter& parameter : load("moe-397b", "fsdp=1").parameters) {
    full_attention += parameter.name.ends_with(".attn.q");
    linear_attention += parameter.name.ends_with(".linear_attn.in_proj_qkv");
    if (parameter.shape.size() != 3 || !is_matrix_algorithm(parameter.algorithm)) continue;
    EXPECT_TRUE(parameter.matrices.rows.empty());
    experts += parameter.shape[0];
    elements += element_count(parameter.shape);
  }
  EXPECT_EQ(experts, 61'440);
  EXPECT_EQ(elements, 386'547'056'640);
  EXPECT_EQ(full_attention, 15);
  EXPECT_EQ(linear_attention, 45);
  EXPECT_EQ(count("moe-397b").elements, 396'346'350'336);
}

TEST(Presets, ExpertsMoveToTheirRowsWhenThereAreMoreRanksThanExperts) {
  const auto fsdp_dim = [](const std::string& mesh, size_t axis) {
    return find(load("moe-397b", mesh), "layers.0.mlp.experts.down").layout.placements[axis].dim;
  };
  EXPECT_EQ(fsdp_dim("fsdp=128", 0), 0);
  EXPECT_EQ(fsdp_dim("fsdp=512", 0), 0);
  EXPECT_EQ(fsdp_dim("fsdp=513", 0), 1);
  // 8 of 64 split the experts first: 64 are left for fsdp, although it comes first in the mesh.
  EXPECT_EQ(fsdp_dim("fsdp=64,ep=8", 0), 0);
  EXPECT_EQ(fsdp_dim("fsdp=65,ep=8", 0), 1);
  const Layout layout = find(load("moe-397b", "fsdp=64,ep=8"), "layers.0.mlp.experts.down").layout;
  EXPECT_EQ(layout.order, (std::vector<int32_t>{1, 0}));
}

TEST(Presets, FusedExpertsAreCutPerHalfUnderTensorParallelism) {
  const Problem problem = load("qwen3-moe-30b", "fsdp=4,tp=2");
  const Layout layout = find(problem, "layers.0.mlp.experts.gate_up").layout;
  EXPECT_EQ(layout.placements[1].dim, 1);
  EXPECT_EQ(layout.placements[1].split_factor, 2);
  EXPECT_EQ(find(problem, "layers.0.attn.q").layout.placements[1], Placement::shard(0));
  EXPECT_EQ(find(problem, "layers.0.attn.o").layout.placements[1], Placement::shard(1));
  EXPECT_EQ(find(problem, "norm").layout.placements[1], Placement::replicate());
}

TEST(Presets, KeepTheFirstLayersOnRequest) {
  ModelOptions options;
  options.mesh = "fsdp=2";
  options.layers = 4;
  const Problem problem = load_model("moe-397b", options);
  // Layer 3 is the one with full attention; embeddings, final norm and head are no layers.
  EXPECT_EQ(problem.parameters.size(), 3u + 4 * 9 + 6 + 3 * 9);
  EXPECT_NO_THROW(find(problem, "layers.3.attn.q"));
  EXPECT_NO_THROW(find(problem, "lm_head"));
}

TEST(Presets, DropTheirGroupsWhenLayersAreMissing) {
  ModelOptions options;
  options.mesh = "replicate=8";
  options.layers = 3;
  EXPECT_TRUE(load_model("modded-nanogpt", options).group_sizes.empty());
}

TEST(Presets, TakeAnotherNumberOfExperts) {
  ModelOptions options;
  options.mesh = "fsdp=7";
  options.set = {{"experts", 60}};
  const Problem problem = load_model("moe-397b", options);
  EXPECT_EQ(find(problem, "layers.59.mlp.experts.gate_up").shape, (Shape{60, 2048, 4096}));
  EXPECT_EQ(find(problem, "layers.59.mlp.router").shape, (Shape{60, 4096}));
}

TEST(Presets, RuleExampleLeavesNorMuonOnTheMlpOnly) {
  ModelOptions options;
  options.mesh = "replicate=8";
  options.rules = source_path("examples/rules/normuon-mlp-only.json");
  for (const char* name : {"modded-nanogpt", "modded-nanogpt-168"}) {
    const Problem problem = load_model(name, options);
    EXPECT_EQ(problem.group_sizes, (std::vector<int64_t>{1, 10, 16, 16}));
    std::map<Algorithm, int> algorithms;
    for (const Parameter& parameter : problem.parameters) ++algorithms[parameter.algorithm];
    EXPECT_EQ(algorithms,
              (std::map<Algorithm, int>{{Algorithm::kMuon, 21}, {Algorithm::kNorMuon, 22}, {Algorithm::kAdamW, 6}}))
        << name;
  }
}

TEST(Presets, ModelExampleHasItsTowerOnAnotherMesh) {
  const Problem problem = load_model(source_path("examples/models/moe-vision.json"), {});
  EXPECT_EQ(problem.model, "moe-vision");
  EXPECT_EQ(problem.ranks, 8);
  ASSERT_EQ(problem.meshes.size(), 2u);
  EXPECT_EQ(find(problem, "vision.1.mlp").layout.mesh, 1);
  EXPECT_EQ(find(problem, "layers.0.attn.o").layout.mesh, 0);
  EXPECT_EQ(problem.meshes[1].ranks.size(), 8u);
}

}  // namespace
}  // namespace muster::model
