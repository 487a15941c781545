// The model: tokens to a loss, and the loss back to gradients. One thread; an object holds the activations of a pass.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "train/layers.h"

namespace muster::train {

template <typename Real>
class Gpt {
 public:
  // Both are kept by reference. A pass is over this many sequences.
  Gpt(const ModelConfig& config, const WeightMap& map, int64_t sequences);

  // Of a pass, with the token after the last.
  int64_t tokens_in() const { return sequences_ * (config_.context + 1); }

  // The negative log-likelihood of all tokens but each sequence's first, in nats, summed.
  double loss(std::span<const Real> weights, std::span<const int32_t> tokens);
  // The same; `gradients` is added the derivative of `scale` times it.
  double loss_and_gradients(std::span<const Real> weights, std::span<const int32_t> tokens, double scale,
                            std::span<Real> gradients);

 private:
  struct Layer {
    RmsNorm<Real> attention_norm;
    Attention<Real> attention;
    RmsNorm<Real> mlp_norm;
    Mlp<Real> mlp;
  };

  void forward(const Real* weights, std::span<const int32_t> tokens);
  double score(std::span<const int32_t> tokens);
  void backward(const Real* weights, std::span<const int32_t> tokens, double scale, Real* gradients);
  void head_backward(const Real* weights, std::span<const int32_t> tokens, double scale, Real* gradients);
  void embedding_backward(std::span<const int32_t> tokens, Real* gradients);
  int32_t input(std::span<const int32_t> tokens, int64_t row) const;
  int32_t target(std::span<const int32_t> tokens, int64_t row) const;

  const ModelConfig& config_;
  const WeightMap& map_;
  int64_t sequences_;
  int64_t rows_;
  RmsNorm<Real> embedding_norm_;
  std::vector<Layer> layers_;
  RmsNorm<Real> final_norm_;
  std::vector<Real> embedded_, x_, dx_, dh_;  // rows x width
  std::vector<Real> logits_;                  // rows x vocabulary; after score(), probabilities
};

}  // namespace muster::train
