#include "train/model.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "run/hash.h"

namespace muster::train {
namespace {

// Lays tensors one after another.
class Mapper {
 public:
  explicit Mapper(const ModelConfig& config) : config_(config) {}

  WeightMap map() {
    const Shape table{config_.vocabulary, config_.width};
    map_.embedding = add({.name = "embedding", .role = Role::kEmbedding, .shape = table});
    for (int64_t i = 0; i < config_.layers; ++i) add_layer(fmt::format("layers.{}.", i));
    if (config_.residual_scale != ResidualScale::kNone) {
      map_.scales = add({.name = "scales", .role = Role::kScales, .shape = {config_.layers}});
    }
    map_.head = config_.tied ? map_.embedding : add({.name = "head", .role = Role::kHead, .shape = table});
    return std::move(map_);
  }

 private:
  int64_t add(Tensor tensor) {
    tensor.offset = map_.elements;
    map_.elements += tensor.elements();
    map_.tensors.push_back(std::move(tensor));
    return map_.tensors.back().offset;
  }

  void add_layer(const std::string& prefix) {
    LayerOffsets at = add_attention(prefix);
    if (config_.gates) {
      at.gate = add({.name = prefix + "gate", .role = Role::kGate, .shape = {config_.heads, config_.gate_inputs()}});
    }
    const Shape wide{config_.width, config_.mlp_width()};
    const bool shared = config_.attention == AttentionStorage::kShared;
    at.up = add({.name = prefix + "up",
                 .role = Role::kUp,
                 .shape = shared ? wide : Shape{config_.mlp_width(), config_.width},
                 .output_dim = shared ? 1 : 0});
    at.down = add({.name = prefix + "down", .role = Role::kDown, .shape = wide});
    map_.layers.push_back(at);
  }

  LayerOffsets add_attention(const std::string& prefix) {
    const int64_t width = config_.width;
    const auto attention = [&](std::string_view what, Shape shape, MatrixSpec matrices) {
      return add({.name = prefix + std::string(what),
                  .role = what == "o" ? Role::kOutput : Role::kAttention,
                  .shape = std::move(shape),
                  .matrices = std::move(matrices)});
    };
    LayerOffsets at;
    MatrixSpec cut;
    if (config_.attention == AttentionStorage::kSeparate) {
      at.q = attention("q", {width, width}, cut);
      at.k = attention("k", {width, width}, cut);
      at.v = attention("v", {width, width}, cut);
      at.o = attention("o", {width, width}, cut);
      return at;
    }
    // Squares, one behind the other, in both.
    if (config_.attention == AttentionStorage::kFused) {
      cut.rows.assign(3, Block{width, {}, {}});
      at.q = attention("qkv", {3 * width, width}, cut);
      at.o = attention("o", {width, width}, {});
    } else {
      cut.view = {4, width, width};
      at.q = attention("qkvo", {width, 4 * width}, cut);
      at.o = at.q + 3 * width * width;
    }
    at.k = at.q + width * width;
    at.v = at.k + width * width;
    return at;
  }

  const ModelConfig& config_;
  WeightMap map_;
};

}  // namespace

WeightMap map_weights(const ModelConfig& config) { return Mapper(config).map(); }

std::vector<float> initial_weights(const ModelConfig& config, const WeightMap& map, uint64_t seed) {
  std::vector<float> weights(static_cast<size_t>(map.elements));
  uint64_t stream = run::mix(seed + run::kGolden);
  const auto fill = [&](Matrix<float> matrix, double deviation) {
    const float unit = run::unit_of(static_cast<float>(deviation));
    stream = run::mix(stream + run::kGolden);
    for (int64_t i = 0; i < matrix.rows; ++i) {
      for (int64_t j = 0; j < matrix.columns; ++j) {
        matrix.at(i, j) = run::normal(run::hash(stream, i * matrix.columns + j), unit);
      }
    }
  };
  const double spread = 1 / std::sqrt(static_cast<double>(config.width));
  fill({weights.data() + map.embedding, config.vocabulary, config.width}, spread);
  if (!config.tied) fill({weights.data() + map.head, config.vocabulary, config.width}, 0.2 * spread);
  for (int64_t i = 0; i < config.layers; ++i) {
    const LayerWeights<float> layer = layer_weights(config, map, i, weights.data());
    for (const Matrix<float>& matrix : {layer.q, layer.k, layer.v, layer.up}) fill(matrix, 0.5 * spread);
    for (const Matrix<float>& matrix : {layer.o, layer.down}) fill(matrix, 0.25 * spread);
    if (layer.scale != nullptr) *layer.scale = 1;  // gates are 0: half open
  }
  return weights;
}

}  // namespace muster::train
