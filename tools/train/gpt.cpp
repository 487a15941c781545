#include "train/gpt.h"

#include <algorithm>
#include <cmath>

namespace muster::train {

template <typename Real>
Gpt<Real>::Gpt(const ModelConfig& config, const WeightMap& map, int64_t sequences)
    : config_(config),
      map_(map),
      sequences_(sequences),
      rows_(sequences * config.context),
      embedding_norm_(rows_, config.width),
      final_norm_(rows_, config.width) {
  for (int64_t i = 0; i < config.layers; ++i) {
    layers_.push_back({RmsNorm<Real>(rows_, config.width), Attention<Real>(config, sequences),
                       RmsNorm<Real>(rows_, config.width), Mlp<Real>(config, rows_)});
  }
  for (auto* const data : {&embedded_, &x_, &dx_, &dh_}) data->resize(static_cast<size_t>(rows_ * config.width));
  logits_.resize(static_cast<size_t>(rows_ * config.vocabulary));
}

template <typename Real>
double Gpt<Real>::loss(std::span<const Real> weights, std::span<const int32_t> tokens) {
  forward(weights.data(), tokens);
  return score(tokens);
}

template <typename Real>
double Gpt<Real>::loss_and_gradients(std::span<const Real> weights, std::span<const int32_t> tokens, double scale,
                                     std::span<Real> gradients) {
  const double sum = loss(weights, tokens);
  backward(weights.data(), tokens, scale, gradients.data());
  return sum;
}

template <typename Real>
int32_t Gpt<Real>::input(std::span<const int32_t> tokens, int64_t row) const {
  return tokens[static_cast<size_t>(row + row / config_.context)];
}

template <typename Real>
int32_t Gpt<Real>::target(std::span<const int32_t> tokens, int64_t row) const {
  return tokens[static_cast<size_t>(row + row / config_.context + 1)];
}

template <typename Real>
void Gpt<Real>::forward(const Real* weights, std::span<const int32_t> tokens) {
  const int64_t width = config_.width;
  for (int64_t i = 0; i < rows_; ++i) {
    std::copy_n(weights + map_.embedding + input(tokens, i) * width, width, embedded_.data() + i * width);
  }
  std::copy_n(embedding_norm_.forward(embedded_.data()), x_.size(), x_.data());
  for (int64_t i = 0; i < config_.layers; ++i) {
    Layer& layer = layers_[static_cast<size_t>(i)];
    const LayerWeights<const Real> own = layer_weights(config_, map_, i, weights);
    layer.attention.forward(own, layer.attention_norm.forward(x_.data()), x_.data());
    layer.mlp.forward(own, layer.mlp_norm.forward(x_.data()), x_.data());
  }
  const Matrix<const Real> head(weights + map_.head, config_.vocabulary, width);
  multiply({final_norm_.forward(x_.data()), rows_, width}, head.transposed(),
           {logits_.data(), rows_, config_.vocabulary});
}

// Makes probabilities of the logits.
template <typename Real>
double Gpt<Real>::score(std::span<const int32_t> tokens) {
  double sum = 0;
  for (int64_t i = 0; i < rows_; ++i) {
    Real* const row = logits_.data() + i * config_.vocabulary;
    const Real largest = *std::max_element(row, row + config_.vocabulary);
    const Real wanted = row[target(tokens, i)] - largest;
    Real total = 0;
    for (int64_t c = 0; c < config_.vocabulary; ++c) total += row[c] = std::exp(row[c] - largest);
    for (int64_t c = 0; c < config_.vocabulary; ++c) row[c] /= total;
    sum += static_cast<double>(std::log(total) - wanted);
  }
  return sum;
}

template <typename Real>
void Gpt<Real>::backward(const Real* weights, std::span<const int32_t> tokens, double scale, Real* gradients) {
  head_backward(weights, tokens, scale, gradients);
  for (int64_t i = config_.layers - 1; i >= 0; --i) {
    Layer& layer = layers_[static_cast<size_t>(i)];
    const LayerWeights<const Real> own = layer_weights(config_, map_, i, weights);
    const LayerWeights<Real> derived = layer_weights(config_, map_, i, gradients);
    // dx_ is the derivative of a part's result and, by the way around it, of its input.
    std::fill(dh_.begin(), dh_.end(), Real{0});
    layer.mlp.backward(own, derived, layer.mlp_norm.output(), dx_.data(), dh_.data());
    layer.mlp_norm.backward(dh_.data(), dx_.data());
    std::fill(dh_.begin(), dh_.end(), Real{0});
    layer.attention.backward(own, derived, layer.attention_norm.output(), dx_.data(), dh_.data());
    layer.attention_norm.backward(dh_.data(), dx_.data());
  }
  embedding_backward(tokens, gradients);
}

template <typename Real>
void Gpt<Real>::head_backward(const Real* weights, std::span<const int32_t> tokens, double scale, Real* gradients) {
  const int64_t width = config_.width;
  const Matrix<Real> dlogits(logits_.data(), rows_, config_.vocabulary);
  for (int64_t i = 0; i < rows_; ++i) dlogits.at(i, target(tokens, i)) -= 1;
  multiply(dlogits.transposed(), {final_norm_.output(), rows_, width},
           {gradients + map_.head, config_.vocabulary, width}, {.alpha = scale, .into = Into::kAdd});
  multiply(dlogits, {weights + map_.head, config_.vocabulary, width}, {dh_.data(), rows_, width}, {.alpha = scale});
  std::fill(dx_.begin(), dx_.end(), Real{0});
  final_norm_.backward(dh_.data(), dx_.data());
}

template <typename Real>
void Gpt<Real>::embedding_backward(std::span<const int32_t> tokens, Real* gradients) {
  const int64_t width = config_.width;
  std::fill(dh_.begin(), dh_.end(), Real{0});
  embedding_norm_.backward(dx_.data(), dh_.data());
  for (int64_t i = 0; i < rows_; ++i) {
    Real* const to = gradients + map_.embedding + input(tokens, i) * width;
    for (int64_t j = 0; j < width; ++j) to[j] += dh_[static_cast<size_t>(i * width + j)];
  }
}

template class Gpt<float>;
template class Gpt<double>;

}  // namespace muster::train
