#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "muster/error.h"
#include "support/run_ranks.h"
#include "train/train.h"

namespace muster::train {
namespace {

// Small, with heads, rows and a vocabulary that few numbers of ranks divide.
Recipe tiny() {
  Recipe recipe;
  recipe.model = {.layers = 2, .width = 12, .heads = 3, .context = 8};
  recipe.steps = 6;
  recipe.batch = 10;
  recipe.slots = 5;
  return recipe;
}

const Corpus& sample() {
  static const Corpus corpus(
      [] {
        std::string text;
        for (int i = 0; i < 60; ++i) text += "the quick brown fox " + std::to_string(i * i % 17) + " jumps; ";
        return text;
      }(),
      tiny().model.context);
  return corpus;
}

TrainResult run(const Recipe& recipe, const std::vector<MeshAxis>& axes, TrainOptions options = {},
                const PlanOptions& plan = {.cost = CostTable::cpu()}, int threads = 1) {
  Mesh mesh{"ranks", axes, {}};
  std::vector<TrainResult> results(static_cast<size_t>(mesh.size()));
  test::run_ranks(mesh.size(), [&](Communicator& communicator) {
    results[communicator.rank()] =
        train(recipe, sample(), {.axes = axes, .plan = plan, .threads = threads}, communicator, options);
  });
  for (const TrainResult& result : results) EXPECT_EQ(result.losses, results[0].losses);
  return results[0];
}

// To the bit: loss by loss, and of the weights in the end.
void expect_equal(const TrainResult& got, const TrainResult& expected) {
  EXPECT_EQ(got.losses, expected.losses);
  EXPECT_EQ(got.final_loss, expected.final_loss);
}

class Weights : public testing::TestWithParam<std::pair<Dtype, WeightForm>> {
 protected:
  Recipe recipe() const {
    Recipe recipe = tiny();
    std::tie(recipe.dtype, recipe.bf16_weights) = GetParam();
    return recipe;
  }
};

TEST_P(Weights, AreTheSameOnAnyRanks) {
  const TrainResult one = run(recipe(), {{"fsdp", 1}});
  ASSERT_EQ(one.losses.size(), 6U);
  EXPECT_LT(one.losses.back(), one.losses.front());
  // 7: more ranks than slots, and than the layers that have a scale.
  for (const int32_t ranks : {2, 3, 4, 7}) {
    SCOPED_TRACE(ranks);
    expect_equal(run(recipe(), {{"fsdp", ranks}}), one);
    expect_equal(run(recipe(), {{"replicate", ranks}}), one);
  }
  expect_equal(run(recipe(), {{"replicate", 2}, {"fsdp", 2}}), one);
  expect_equal(run(recipe(), {{"fsdp", 2}}, {}, {.cost = CostTable::cpu()}, 3), one);
}

INSTANTIATE_TEST_SUITE_P(Forms, Weights,
                         testing::Values(std::pair(Dtype::kF32, WeightForm::kF32),
                                         std::pair(Dtype::kBf16, WeightForm::kBf16),
                                         std::pair(Dtype::kBf16, WeightForm::kBf16Master),
                                         std::pair(Dtype::kBf16, WeightForm::kBf16Mantissa),
                                         std::pair(Dtype::kBf16, WeightForm::kBf16Stochastic)));

TEST(Train, LearnsTheSameUnderEveryStrategy) {
  for (const AttentionStorage storage :
       {AttentionStorage::kSeparate, AttentionStorage::kFused, AttentionStorage::kShared}) {
    Recipe recipe = tiny();
    recipe.model.attention = storage;
    const TrainResult one = run(recipe, {{"fsdp", 1}});
    for (const Strategy strategy : all_strategies()) {
      // Its groups want matrices that lie on equally many ranks: slices of a shared storage do not.
      if (strategy == Strategy::kGrouped && storage == AttentionStorage::kShared) continue;
      SCOPED_TRACE(name(strategy));
      PlanOptions plan{.strategy = strategy, .cost = CostTable::cpu()};
      expect_equal(run(recipe, {{"fsdp", 3}}, {}, plan), one);
    }
    PlanOptions other{.waves = 3, .wave_order = WaveOrder::kSmallLast, .elementwise = ElementwiseOrder::kLast};
    other.cost = CostTable::cpu();
    expect_equal(run(recipe, {{"fsdp", 3}}, {}, other), one);
  }
}

// Blocks of one parameter are orthogonalized as if each were one; a transposed matrix is summed in another order.
TEST(Train, StoresWeightsTogetherOrApart) {
  Recipe recipe = tiny();
  recipe.wire = Dtype::kF32;
  const TrainResult separate = run(recipe, {{"fsdp", 1}});
  recipe.model.attention = AttentionStorage::kFused;
  expect_equal(run(recipe, {{"fsdp", 2}}), separate);
  recipe.model.attention = AttentionStorage::kShared;
  const TrainResult shared = run(recipe, {{"fsdp", 2}});
  // f32 keeps 7 digits, of which five steps of Newton-Schulz cost up to 3.
  for (size_t i = 0; i < shared.losses.size(); ++i) EXPECT_NEAR(shared.losses[i], separate.losses[i], 1e-3);
}

// What the recipe says must reach the optimizer: each of these changes what is learnt.
TEST(Train, DoesWhatTheRecipeSays) {
  const TrainResult usual = run(tiny(), {{"fsdp", 1}});
  const std::pair<const char*, const char*> changes[] = {{"layers", "1"},          {"width", "24"},
                                                         {"heads", "2"},           {"mlp", "gelu"},
                                                         {"gates", "off"},         {"residual-scale", "off"},
                                                         {"tied", "on"},           {"seed", "2"},
                                                         {"steps", "7"},           {"batch", "5"},
                                                         {"optimizer", "muon"},    {"optimizer", "adamw"},
                                                         {"normuon", "mlp"},       {"lr", "0.03"},
                                                         {"adamw-lr", "0.002"},    {"momentum", "0.8"},
                                                         {"weight-decay", "1"},    {"coefficients", "jordan"},
                                                         {"wire", "f32"},          {"dtype", "bf16"},
                                                         {"schedule", "cooldown"}, {"schedule", "cosine"},
                                                         {"final-lr", "0.5"},      {"gate-axis", "columns"},
                                                         {"wo-axis", "columns"},   {"step-scale", "none"},
                                                         {"step-scale", "fan"},    {"attention-lr-mul", "2"},
                                                         {"up-lr-mul", "2"},       {"down-lr-mul", "4"}};
  for (const auto& [flag, value] : changes) {
    Recipe recipe = tiny();
    for (const RecipeField& field : recipe_fields()) {
      if (field.name == flag) field.set(recipe, value);
    }
    EXPECT_NE(run(recipe, {{"fsdp", 1}}).final_loss, usual.final_loss) << flag;
  }
  // These have a say only with others.
  Recipe cooled = tiny();
  cooled.schedule.form = Schedule::Form::kCooldown;
  const double half = run(cooled, {{"fsdp", 1}}).final_loss;
  cooled.schedule.cooldown = 0.25;
  EXPECT_NE(run(cooled, {{"fsdp", 1}}).final_loss, half) << "cooldown";
  Recipe first = tiny();
  first.weight_decay = 1;
  first.dtype = Dtype::kBf16;
  for (const auto& [flag, value] : {std::pair("decay", "plain"), std::pair("bf16-weights", "nearest")}) {
    Recipe second = first;
    for (const RecipeField& field : recipe_fields()) {
      if (field.name == flag) field.set(second, value);
    }
    EXPECT_NE(run(second, {{"fsdp", 1}}).losses, run(first, {{"fsdp", 1}}).losses) << flag;
  }
}

// What decides the losses must not depend on the ranks: schedules, axes and multipliers included.
TEST(Train, LearnsTheSameOnAnyRanksWithEverySchedule) {
  for (const AttentionStorage storage :
       {AttentionStorage::kSeparate, AttentionStorage::kFused, AttentionStorage::kShared}) {
    Recipe recipe = tiny();
    recipe.model.attention = storage;
    recipe.model.residual_scale = ResidualScale::kOutput;
    recipe.schedule = {.form = Schedule::Form::kCooldown, .cooldown = 0.4, .final_rate = 0.1, .extension = 2};
    recipe.gate_axis = NormAxis::kLonger;
    recipe.output_axis = NormAxis::kColumns;
    recipe.step_scale = StepScale::kNone;
    recipe.attention_lr_mul = 2;
    recipe.down_lr_mul = 4;
    const TrainOptions options{.eval_every = 3};
    const TrainResult one = run(recipe, {{"fsdp", 1}}, options);
    EXPECT_EQ(one.losses.size(), 8U) << "the scheduled steps, and the extension";
    recipe.schedule.form = Schedule::Form::kCosine;
    const TrainResult cosine = run(recipe, {{"fsdp", 1}}, options);
    EXPECT_NE(cosine.final_loss, one.final_loss);
    for (const std::vector<MeshAxis>& axes :
         {std::vector<MeshAxis>{{"fsdp", 3}}, {{"replicate", 2}}, {{"replicate", 2}, {"fsdp", 2}}}) {
      recipe.schedule.form = Schedule::Form::kCooldown;
      const TrainResult more = run(recipe, axes, options);
      expect_equal(more, one);
      EXPECT_EQ(more.held_out, one.held_out);
      recipe.schedule.form = Schedule::Form::kCosine;
      expect_equal(run(recipe, axes, options), cosine);
    }
  }
}

TEST(Train, ComputesHeldOutLossesOnTheWay) {
  std::vector<HeldOut> told;
  TrainOptions options{.eval_every = 4};
  options.evaluated = [&](const HeldOut& one) { told.push_back(one); };
  const TrainResult with = run(tiny(), {{"fsdp", 1}}, options);
  std::vector<int64_t> steps;
  for (const HeldOut& one : with.held_out) steps.push_back(one.step);
  EXPECT_EQ(steps, (std::vector<int64_t>{0, 4, 6}));
  EXPECT_EQ(told, with.held_out);
  EXPECT_EQ(with.held_out.back().loss, with.final_loss);
  EXPECT_LT(with.held_out.back().loss, with.held_out.front().loss);
  expect_equal(with, run(tiny(), {{"fsdp", 1}}));
  EXPECT_TRUE(run(tiny(), {{"fsdp", 1}}).held_out.empty());
}

TEST(Train, AveragesHeldOutLossesOverRuns) {
  std::vector<TrainResult> runs(2);
  runs[0].held_out = {{0, 4}, {5, 2}, {7, 1}};
  runs[1].held_out = {{0, 5}, {5, 4}};
  const std::vector<HeldOutSpread> spread = held_out_spread(runs);
  ASSERT_EQ(spread.size(), 2U) << "step 7 is of one run only";
  EXPECT_EQ(spread[1].step, 5);
  EXPECT_EQ(spread[1].mean, 3);
  EXPECT_DOUBLE_EQ(spread[1].deviation, std::sqrt(2.0));
  EXPECT_TRUE(std::isnan(held_out_spread({runs.data(), 1})[0].deviation));
}

class Checkpoints : public testing::Test {
 protected:
  // Tests run beside one another, in processes of their own.
  Checkpoints() : folder_(testing::TempDir() + "muster_train_" + std::to_string(::getpid())) {
    std::filesystem::remove_all(folder_);
  }
  ~Checkpoints() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
};

TEST_F(Checkpoints, GoOnAsIfNothingHadHappened) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    Recipe recipe = tiny();
    recipe.dtype = dtype;
    const TrainResult whole = run(recipe, {{"fsdp", 2}});
    run(recipe, {{"fsdp", 2}}, {.until = 2, .save = folder_});
    // On other ranks, and stopping once more.
    run(recipe, {{"replicate", 3}}, {.until = 4, .save = folder_, .resume = folder_});
    const TrainResult resumed = run(recipe, {{"fsdp", 1}}, {.resume = folder_});
    EXPECT_EQ(resumed.first_step, 4);
    EXPECT_EQ(resumed.step_ns.size(), 2U);
    expect_equal(resumed, whole);
  }
}

TEST_F(Checkpoints, GoOnInTheMiddleOfASchedule) {
  for (const Schedule::Form form : {Schedule::Form::kCooldown, Schedule::Form::kCosine}) {
    Recipe recipe = tiny();
    recipe.schedule = {.form = form, .final_rate = 0.1, .extension = 3};
    const TrainOptions whole{.eval_every = 2};
    const TrainResult expected = run(recipe, {{"fsdp", 2}}, whole);
    // In the falling part, and again in the extension.
    run(recipe, {{"fsdp", 2}}, {.until = 4, .save = folder_, .eval_every = 2});
    EXPECT_EQ(read_position(folder_).held_out.size(), 3U);
    run(recipe, {{"fsdp", 3}}, {.until = 7, .save = folder_, .resume = folder_, .eval_every = 2});
    const TrainResult resumed = run(recipe, {{"fsdp", 1}}, {.resume = folder_, .eval_every = 2});
    expect_equal(resumed, expected);
    EXPECT_EQ(resumed.held_out, expected.held_out);
    std::filesystem::remove_all(folder_);
  }
}

// Trainings saved before there were schedules go on with the linear one.
TEST_F(Checkpoints, ReadTheFirstVersion) {
  run(tiny(), {{"fsdp", 1}}, {.until = 2, .save = folder_});
  std::ifstream file(folder_ + "/train.json");
  nlohmann::ordered_json json = nlohmann::ordered_json::parse(file);
  json["version"] = 1;
  json.erase("held_out");
  for (const RecipeField& field : recipe_fields()) {
    if (field.since > 1) json["recipe"].erase(std::string(field.name));
  }
  std::ofstream(folder_ + "/train.json") << json.dump();
  expect_equal(run(tiny(), {{"fsdp", 2}}, {.resume = folder_}), run(tiny(), {{"fsdp", 2}}));
  json["version"] = 2;
  EXPECT_THROW(parse_position(json.dump(), "a file"), InvalidArgument) << "version 2 has all fields";
  json["version"] = 3;
  EXPECT_THROW(parse_position(json.dump(), "a file"), InvalidArgument);
}

TEST_F(Checkpoints, AreTheLastThatWasWhole) {
  const Recipe recipe = tiny();
  run(recipe, {{"fsdp", 2}}, {.until = 2, .save = folder_});
  // A save that broke off before its last moment: files of a state, and half a position.
  const std::string unused = read_position(folder_).state == "state-a" ? "state-b" : "state-a";
  std::filesystem::create_directory(folder_ + "/" + unused);
  std::ofstream(folder_ + "/" + unused + "/muster.index.json") << "{";
  std::ofstream(folder_ + "/train.json.tmp") << "{";
  EXPECT_EQ(read_position(folder_).losses.size(), 2U);
  run(recipe, {{"fsdp", 2}}, {.until = 4, .save = folder_, .resume = folder_});
  expect_equal(run(recipe, {{"fsdp", 2}}, {.resume = folder_}), run(recipe, {{"fsdp", 2}}));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 2) << "the old state is gone";
}

TEST_F(Checkpoints, SaveEverySoManySteps) {
  std::vector<size_t> saved;
  TrainOptions options{.save = folder_, .save_every = 4};
  options.progress = [&](int64_t, const TrainedStep&) {
    const bool there = std::filesystem::exists(folder_ + "/train.json");
    saved.push_back(there ? read_position(folder_).losses.size() : 0);
  };
  run(tiny(), {{"fsdp", 1}}, options);
  EXPECT_EQ(saved, (std::vector<size_t>{0, 0, 0, 0, 4, 4}));
  EXPECT_EQ(read_position(folder_).losses.size(), 6U);
}

TEST_F(Checkpoints, RefuseAnotherTraining) {
  run(tiny(), {{"fsdp", 1}}, {.until = 1, .save = folder_});
  const auto communicator = std::move(make_local_communicators(1).front());
  const auto complaint = [&](const Recipe& recipe, const Corpus& corpus) -> std::string {
    try {
      train(recipe, corpus, {}, *communicator, {.resume = folder_});
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "none";
  };
  Recipe recipe = tiny();
  recipe.lr = 0.5;
  EXPECT_THAT(complaint(recipe, sample()), testing::HasSubstr("--lr: 0.5, but the checkpoint has 0.04"));
  EXPECT_THAT(complaint(tiny(), Corpus(std::string(500, 'x'), 8)), testing::HasSubstr("--text"));
  std::ofstream(folder_ + "/train.json") << "{\"format\": 3";
  EXPECT_THAT(complaint(tiny(), sample()), testing::HasSubstr("train.json"));
  std::filesystem::remove(folder_ + "/train.json");
  EXPECT_THAT(complaint(tiny(), sample()), testing::HasSubstr("train.json"));
}

TEST(Train, StopsAtALossThatIsNotFinite) {
  Recipe recipe = tiny();
  recipe.lr = 1e6;
  recipe.adamw_lr = 1e6;
  recipe.weight_decay = 1e6;
  recipe.steps = 100;
  test::run_ranks(2, [&](Communicator& communicator) {
    try {
      train(recipe, sample(), {.axes = {{"fsdp", 2}}}, communicator);
      ADD_FAILURE() << "trained";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("the loss is"));
    }
  });
}

TEST(Train, KnowsItsAxes) {
  const auto communicator = std::move(make_local_communicators(1).front());
  EXPECT_THROW(train(tiny(), sample(), {.axes = {{"tp", 1}}}, *communicator), InvalidArgument);
}

TEST(Recipe, ReadsWhatItWrites) {
  Recipe recipe = tiny();
  recipe.lr = 0.1 + 0.2;
  recipe.seed = 123456789012345;
  recipe.algorithm = Algorithm::kMuon;
  recipe.model.attention = AttentionStorage::kShared;
  recipe.dtype = Dtype::kBf16;
  Recipe read;
  for (const RecipeField& field : recipe_fields()) field.set(read, field.get(recipe));
  for (const RecipeField& field : recipe_fields()) EXPECT_EQ(field.get(read), field.get(recipe)) << field.name;
  EXPECT_EQ(read.lr, recipe.lr);
}

TEST(Recipe, RefusesWhatMakesNoSense) {
  Recipe recipe;
  const std::pair<const char*, const char*> bad[] = {{"layers", "0"},       {"layers", "two"},
                                                     {"layers", ""},        {"width", "1.5"},
                                                     {"lr", "-1"},          {"lr", "nan"},
                                                     {"lr", "1e9"},         {"momentum", "1.01"},
                                                     {"optimizer", "adam"}, {"gates", "yes"},
                                                     {"attention", "q"},    {"mlp", "swiglu"},
                                                     {"dtype", "f16"},      {"coefficients", "x"},
                                                     {"seed", "-1"},        {"slots", "0"},
                                                     {"batch", "99999999"}, {"schedule", "step"},
                                                     {"cooldown", "1.1"},   {"final-lr", "2"},
                                                     {"extension", "-1"},   {"gate-axis", "heads"},
                                                     {"wo-axis", "longer"}, {"step-scale", "x"},
                                                     {"up-lr-mul", "-1"},   {"residual-scale", "before"}};
  for (const auto& [flag, value] : bad) {
    for (const RecipeField& field : recipe_fields()) {
      if (field.name != flag) continue;
      EXPECT_THROW(field.set(recipe, value), InvalidArgument) << flag << ' ' << value;
    }
  }
  recipe = {};
  recipe.slots = 5;
  EXPECT_THROW(validate(recipe), InvalidArgument);
  recipe = {};
  recipe.model.heads = 3;
  EXPECT_THROW(validate(recipe), InvalidArgument);
  recipe = {};
  recipe.schedule.cooldown = 0.2;
  EXPECT_THROW(validate(recipe), InvalidArgument) << "without the schedule that it is for";
  recipe.schedule.form = Schedule::Form::kCooldown;
  EXPECT_NO_THROW(validate(recipe));
  recipe.schedule.cooldown = 0;
  EXPECT_THROW(validate(recipe), InvalidArgument);
  recipe = {};
  recipe.schedule.extension = 5;
  EXPECT_THROW(validate(recipe), InvalidArgument) << "at a learning rate of 0";
  recipe.schedule.final_rate = 0.1;
  EXPECT_NO_THROW(validate(recipe));
  EXPECT_NO_THROW(validate(Recipe{}));
}

}  // namespace
}  // namespace muster::train
