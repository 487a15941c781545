#include "train/gpt.h"

#include <cmath>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "run/hash.h"

namespace muster::train {
namespace {

constexpr int64_t kSequences = 2;

ModelConfig tiny() { return {.vocabulary = 7, .layers = 2, .width = 12, .heads = 3, .context = 5}; }

// About normal, from their place.
std::vector<double> numbers(int64_t count, uint64_t stream, double deviation) {
  std::vector<double> out(static_cast<size_t>(count));
  const float unit = run::unit_of(static_cast<float>(deviation));
  for (int64_t i = 0; i < count; ++i) out[i] = run::normal(run::hash(run::mix(stream), i), unit);
  return out;
}

std::vector<int32_t> sample_tokens(const ModelConfig& config) {
  std::vector<int32_t> tokens(static_cast<size_t>(kSequences * (config.context + 1)));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = static_cast<int32_t>(run::hash(3, static_cast<int64_t>(i)) % static_cast<uint64_t>(config.vocabulary));
  }
  return tokens;
}

using Options = std::tuple<AttentionStorage, Activation, bool, ResidualScale, bool>;

class Derivatives : public testing::TestWithParam<Options> {
 protected:
  ModelConfig config() const {
    ModelConfig config = tiny();
    std::tie(config.attention, config.activation, config.gates, config.residual_scale, config.tied) = GetParam();
    return config;
  }
};

// Central differences along a random direction in each tensor: what is wrong with any of its elements shows.
TEST_P(Derivatives, AreThoseOfFiniteDifferences) {
  const ModelConfig model = config();
  const WeightMap map = map_weights(model);
  Gpt<double> gpt(model, map, kSequences);
  const std::vector<double> weights = numbers(map.elements, 1, 0.5);
  const std::vector<int32_t> tokens = sample_tokens(model);
  constexpr double kScale = 0.3;
  std::vector<double> gradients(weights.size());
  gpt.loss_and_gradients(weights, tokens, kScale, gradients);
  for (const Tensor& tensor : map.tensors) {
    for (uint64_t direction = 0; direction < 2; ++direction) {
      const std::vector<double> along = numbers(tensor.elements(), 10 + direction, 1);
      constexpr double kStep = 1e-5;
      const auto loss_at = [&](double distance) {
        std::vector<double> moved = weights;
        for (size_t i = 0; i < along.size(); ++i) moved[tensor.offset + i] += distance * along[i];
        return gpt.loss(moved, tokens);
      };
      const double expected = kScale * (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
      double got = 0;
      for (size_t i = 0; i < along.size(); ++i) got += along[i] * gradients[tensor.offset + i];
      // f64 leaves 1e-16 / 1e-5 of the loss, and the third derivative 1e-10.
      EXPECT_NEAR(got, expected, 1e-7 * (1 + std::abs(expected))) << tensor.name;
      EXPECT_NE(got, 0) << tensor.name;
    }
  }
}

std::string option_name(const testing::TestParamInfo<Options>& info) {
  const auto& [attention, activation, gates, scale, tied] = info.param;
  const std::string storage = attention == AttentionStorage::kSeparate ? "separate"
                              : attention == AttentionStorage::kFused  ? "fused"
                                                                       : "shared";
  return storage + (activation == Activation::kRelu2 ? "_relu2" : "_gelu") + (gates ? "_gates" : "") +
         (scale == ResidualScale::kWeights  ? "_scale"
          : scale == ResidualScale::kOutput ? "_after"
                                            : "") +
         (tied ? "_tied" : "");
}

INSTANTIATE_TEST_SUITE_P(
    EveryOption, Derivatives,
    testing::Combine(testing::Values(AttentionStorage::kSeparate, AttentionStorage::kFused, AttentionStorage::kShared),
                     testing::Values(Activation::kRelu2, Activation::kGelu), testing::Bool(),
                     testing::Values(ResidualScale::kNone, ResidualScale::kWeights, ResidualScale::kOutput),
                     testing::Bool()),
    option_name);

TEST(Gpt, AddsToGradients) {
  const ModelConfig config = tiny();
  const WeightMap map = map_weights(config);
  Gpt<double> gpt(config, map, kSequences);
  const std::vector<double> weights = numbers(map.elements, 1, 0.5);
  const std::vector<int32_t> tokens = sample_tokens(config);
  std::vector<double> once(weights.size());
  gpt.loss_and_gradients(weights, tokens, 1, once);
  std::vector<double> twice = once;
  gpt.loss_and_gradients(weights, tokens, 1, twice);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(twice[i], 2 * once[i], 1e-12);
}

// What comes before the last input costs the same without it: then the costs of all that may follow are those of
// probabilities, which add up to 1.
TEST(Gpt, DoesNotLookAhead) {
  const ModelConfig config = tiny();
  const WeightMap map = map_weights(config);
  const std::vector<double> weights = numbers(map.elements, 1, 0.5);
  ModelConfig shorter = config;
  shorter.context = config.context - 1;
  const double before = Gpt<double>(shorter, map, 1).loss(weights, std::vector<int32_t>{1, 2, 3, 4, 5});
  Gpt<double> gpt(config, map, 1);
  double sum = 0;
  for (int32_t next = 0; next < config.vocabulary; ++next) {
    sum += std::exp(before - gpt.loss(weights, std::vector<int32_t>{1, 2, 3, 4, 5, next}));
  }
  EXPECT_NEAR(sum, 1, 1e-12);
}

// (s W) y and s (W y) are the same function of the same weights, but for rounding.
TEST(Gpt, ScalesTheOutputProjectionInItsWeightsOrAfter) {
  ModelConfig config = tiny();
  const WeightMap map = map_weights(config);
  const std::vector<double> weights = numbers(map.elements, 1, 0.5);
  const std::vector<int32_t> tokens = sample_tokens(config);
  std::vector<double> in_weights(weights.size());
  const double loss = Gpt<double>(config, map, kSequences).loss_and_gradients(weights, tokens, 1, in_weights);
  config.residual_scale = ResidualScale::kOutput;
  std::vector<double> after(weights.size());
  EXPECT_NEAR(Gpt<double>(config, map, kSequences).loss_and_gradients(weights, tokens, 1, after), loss, 1e-12);
  for (size_t i = 0; i < after.size(); ++i) EXPECT_NEAR(after[i], in_weights[i], 1e-12);
}

TEST(Gpt, StoresOneModelInThreeWays) {
  const std::vector<int32_t> tokens = sample_tokens(tiny());
  std::vector<double> losses;
  for (const AttentionStorage storage :
       {AttentionStorage::kSeparate, AttentionStorage::kFused, AttentionStorage::kShared}) {
    ModelConfig config = tiny();
    config.attention = storage;
    const WeightMap map = map_weights(config);
    const std::vector<float> weights = initial_weights(config, map, 5);
    const std::vector<double> wide(weights.begin(), weights.end());
    Gpt<double> gpt(config, map, kSequences);
    std::vector<double> gradients(wide.size());
    losses.push_back(gpt.loss_and_gradients(wide, tokens, 1, gradients));
    const LayerWeights<double> layer = layer_weights(config, map, 1, gradients.data());
    losses.push_back(layer.up.at(3, 5));
    losses.push_back(layer.o.at(3, 5));
  }
  for (size_t i = 3; i < losses.size(); ++i) EXPECT_NEAR(losses[i], losses[i - 3], 1e-13);
}

TEST(Model, StoresEverythingInTheShapeOfTheMlp) {
  ModelConfig config = tiny();
  config.attention = AttentionStorage::kShared;
  const WeightMap map = map_weights(config);
  const Shape wide{config.width, 4 * config.width};
  for (const Tensor& tensor : map.tensors) {
    if (tensor.role == Role::kEmbedding || tensor.role == Role::kHead || tensor.role == Role::kScales) continue;
    if (tensor.role == Role::kGate) continue;
    EXPECT_EQ(tensor.shape, wide) << tensor.name;
  }
}

}  // namespace
}  // namespace muster::train
