// The small GPT that `muster train` trains: what it is made of, and where each weight lies.
//
// All weights, and all gradients, are one flat buffer: the tensors one after another, each row-major.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "muster/problem.h"
#include "train/matrix.h"

namespace muster::train {

// How a layer's attention weights are stored. The maths is the same.
enum class AttentionStorage : uint8_t {
  kSeparate,  // q, k, v, o: (width, width) each
  kFused,     // qkv: (3 width, width), three row blocks; o
  kShared,    // qkvo in the shape of the MLP's weights, (width, 4 width), read as (4, width, width); the MLP's first is
              // stored transposed for it, so that all large matrices have one shape, as in modded-nanogpt #132
};
enum class Activation : uint8_t { kRelu2, kGelu };

// A number s per layer, times attention's output projection.
enum class ResidualScale : uint8_t {
  kNone,
  kWeights,  // (s W) y, as in modded-nanogpt #168
  kOutput,   // s (W y), as before it
};

struct ModelConfig {
  int64_t vocabulary = 0;
  int64_t layers = 4;
  int64_t width = 128;
  int64_t heads = 4;
  int64_t context = 64;  // tokens of a sequence
  AttentionStorage attention = AttentionStorage::kSeparate;
  Activation activation = Activation::kRelu2;
  bool gates = true;  // every head times a sigmoid of the layer's first inputs
  ResidualScale residual_scale = ResidualScale::kWeights;
  bool tied = false;  // the head is the embedding

  int64_t head_width() const { return width / heads; }
  int64_t mlp_width() const { return 4 * width; }
  int64_t gate_inputs() const { return width < 12 ? width : 12; }
};

// kAttention: q, k and v, or with all of attention in one, that. kOutput: attention's output projection by itself.
enum class Role : uint8_t { kEmbedding, kHead, kScales, kGate, kAttention, kOutput, kUp, kDown };

struct Tensor {
  std::string name;
  Role role = Role::kUp;
  Shape shape;
  int64_t offset = 0;     // in the flat buffer
  int output_dim = 0;     // as Parameter's
  MatrixSpec matrices{};  // as Parameter's

  int64_t elements() const { return element_count(shape); }
};

// Offsets of one layer's weights in the flat buffer. q, k, v and o are (width, width), row-major, in every storage.
struct LayerOffsets {
  int64_t q = 0;
  int64_t k = 0;
  int64_t v = 0;
  int64_t o = 0;
  int64_t gate = 0;  // (heads, gate_inputs)
  int64_t up = 0;    // (mlp_width, width); kShared: its transpose
  int64_t down = 0;  // (width, mlp_width)
};

struct WeightMap {
  std::vector<Tensor> tensors;
  std::vector<LayerOffsets> layers;
  int64_t embedding = 0;  // (vocabulary, width)
  int64_t head = 0;       // the same
  int64_t scales = 0;     // one a layer
  int64_t elements = 0;
};

WeightMap map_weights(const ModelConfig& config);

// One layer's part of a flat buffer of weights or gradients.
template <typename T>
struct LayerWeights {
  Matrix<T> q, k, v, o;  // (width, width): output by input
  Matrix<T> gate;        // (heads, gate_inputs); no rows where there are no gates
  Matrix<T> up;          // (mlp_width, width)
  Matrix<T> down;        // (width, mlp_width)
  T* scale = nullptr;    // of the output projection; null: none
};

template <typename T>
LayerWeights<T> layer_weights(const ModelConfig& config, const WeightMap& map, int64_t layer, T* flat) {
  const LayerOffsets& at = map.layers[static_cast<size_t>(layer)];
  const int64_t width = config.width;
  const auto square = [&](int64_t offset) { return Matrix<T>(flat + offset, width, width); };
  const Matrix<T> stored_transposed(flat + at.up, width, config.mlp_width());
  return {.q = square(at.q),
          .k = square(at.k),
          .v = square(at.v),
          .o = square(at.o),
          .gate = {flat + at.gate, config.gates ? config.heads : 0, config.gate_inputs()},
          .up = config.attention == AttentionStorage::kShared ? stored_transposed.transposed()
                                                              : Matrix<T>(flat + at.up, config.mlp_width(), width),
          .down = {flat + at.down, width, config.mlp_width()},
          .scale = config.residual_scale != ResidualScale::kNone ? flat + map.scales + layer : nullptr};
}

// The weights that training begins with: the same model for every attention storage.
std::vector<float> initial_weights(const ModelConfig& config, const WeightMap& map, uint64_t seed);

}  // namespace muster::train
