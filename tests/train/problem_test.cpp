#include "train/problem.h"

#include <algorithm>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "train/shards.h"

namespace muster::train {
namespace {

Recipe sample(AttentionStorage storage) {
  Recipe recipe;
  recipe.model = {.vocabulary = 11, .layers = 2, .width = 12, .heads = 3, .context = 8, .attention = storage};
  return recipe;
}

Parameter find(const Problem& problem, std::string_view name) {
  const auto found = std::ranges::find(problem.parameters, name, &Parameter::name);
  return found == problem.parameters.end() ? Parameter{} : *found;
}

Problem problem_of(const Recipe& recipe) { return make_problem(recipe, map_weights(recipe.model), {{"fsdp", 3}}); }

TEST(TrainProblem, SaysHowStoragesAreReadAsMatrices) {
  const Parameter qkv = find(problem_of(sample(AttentionStorage::kFused)), "layers.1.qkv");
  EXPECT_EQ(qkv.shape, (Shape{36, 12}));
  EXPECT_EQ(qkv.matrices.rows.size(), 3U);
  const Problem shared = problem_of(sample(AttentionStorage::kShared));
  EXPECT_EQ(find(shared, "layers.1.qkvo").matrices.view, (Shape{4, 12, 12}));
  EXPECT_EQ(find(shared, "layers.1.up").output_dim, 1);
  EXPECT_EQ(find(shared, "layers.1.down").output_dim, 0);
  for (const AttentionStorage storage :
       {AttentionStorage::kSeparate, AttentionStorage::kFused, AttentionStorage::kShared}) {
    EXPECT_NO_THROW(validate(problem_of(sample(storage))));
  }
}

TEST(TrainProblem, GivesEveryRoleItsAlgorithm) {
  Recipe recipe = sample(AttentionStorage::kSeparate);
  const auto algorithms = [&] {
    const Problem problem = problem_of(recipe);
    std::vector<Algorithm> out;
    for (const char* const name : {"embedding", "head", "scales", "layers.0.gate", "layers.0.q", "layers.0.up"}) {
      out.push_back(find(problem, name).algorithm);
    }
    return out;
  };
  using enum Algorithm;
  EXPECT_EQ(algorithms(), (std::vector{kAdamW, kAdamW, kAdamW, kNorMuon, kNorMuon, kNorMuon}));
  recipe.normuon_on = NorMuonOn::kMlp;
  EXPECT_EQ(algorithms(), (std::vector{kAdamW, kAdamW, kAdamW, kMuon, kMuon, kNorMuon}));
  recipe.algorithm = kMuon;
  EXPECT_EQ(algorithms(), (std::vector{kAdamW, kAdamW, kAdamW, kMuon, kMuon, kMuon}));
  recipe.algorithm = kAdamW;
  EXPECT_EQ(algorithms(), std::vector(6, kAdamW));
  EXPECT_EQ(find(problem_of(recipe), "layers.0.gate").norm_axis, NormAxis::kRows);
}

// modded-nanogpt #168: gates by rows, and the output projections along the other dimension than the rest.
TEST(TrainProblem, SaysAlongWhichAxisNorMuonNormalizes) {
  using enum AttentionStorage;
  for (const AttentionStorage storage : {kSeparate, kFused}) {
    Recipe recipe = sample(storage);
    recipe.gate_axis = NormAxis::kLonger;
    recipe.output_axis = NormAxis::kColumns;
    const Problem problem = problem_of(recipe);
    EXPECT_EQ(find(problem, "layers.0.gate").norm_axis, NormAxis::kLonger);
    EXPECT_EQ(find(problem, "layers.1.o").norm_axis, NormAxis::kColumns);
    EXPECT_EQ(find(problem, storage == kFused ? "layers.1.qkv" : "layers.1.q").norm_axis, NormAxis::kLonger);
  }
  Recipe recipe = sample(kShared);
  recipe.output_axis = NormAxis::kColumns;
  const Problem problem = problem_of(recipe);
  EXPECT_NO_THROW(validate(problem));
  const MatrixSpec& matrices = find(problem, "layers.1.qkvo").matrices;
  ASSERT_EQ(matrices.rows.size(), 4U);
  EXPECT_EQ(matrices.rows[3].norm_axis, NormAxis::kColumns);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(matrices.rows[i].norm_axis, std::nullopt);
}

TEST(TrainProblem, MultipliesTheLearningRateByRole) {
  for (const AttentionStorage storage :
       {AttentionStorage::kSeparate, AttentionStorage::kFused, AttentionStorage::kShared}) {
    Recipe recipe = sample(storage);
    recipe.attention_lr_mul = 2;
    recipe.up_lr_mul = 3;
    recipe.down_lr_mul = 4;
    const std::map<std::string, double> expected = {{"q", 2},   {"k", 2},    {"v", 2},  {"o", 2},
                                                    {"qkv", 2}, {"qkvo", 2}, {"up", 3}, {"down", 4}};
    for (const Parameter& p : problem_of(recipe).parameters) {
      const auto found = expected.find(p.name.substr(p.name.rfind('.') + 1));
      EXPECT_EQ(p.multiplier, found == expected.end() ? 1 : found->second) << p.name;
    }
  }
}

TEST(Shards, HoldEverythingOnceAReplica) {
  const Recipe recipe = sample(AttentionStorage::kShared);
  const WeightMap map = map_weights(recipe.model);
  const Problem problem = make_problem(recipe, map, {{"replicate", 2}, {"fsdp", 5}});
  const std::vector<Shard> shards = make_shards(problem, map);
  ASSERT_EQ(shards.size(), 10U);
  std::vector<std::vector<int>> held(2, std::vector<int>(static_cast<size_t>(map.elements)));
  for (const Shard& shard : shards) {
    int64_t elements = 0;
    for (const run::Row& row : shard.rows) {
      for (int64_t i = 0; i < row.count; ++i) ++held[shard.replica][row.first + i];
      elements += row.count;
    }
    EXPECT_EQ(elements, shard.elements());
  }
  for (const std::vector<int>& replica : held) {
    EXPECT_TRUE(std::ranges::all_of(replica, [](int times) { return times == 1; }));
  }
}

TEST(Slots, AreSharedOutInOrder) {
  for (const int64_t slots : {1, 5, 8}) {
    for (const int32_t ranks : {1, 2, 3, 4, 7, 9}) {
      int64_t next = 0;
      for (int32_t rank = 0; rank < ranks; ++rank) {
        const SlotRange own = slots_of(slots, rank, ranks);
        EXPECT_EQ(own.begin, next);
        EXPECT_LE(own.size(), (slots + ranks - 1) / ranks);
        next = own.end;
      }
      EXPECT_EQ(next, slots);
    }
  }
}

}  // namespace
}  // namespace muster::train
