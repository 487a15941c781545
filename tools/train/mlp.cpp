#include <cmath>
#include <numbers>

#include "train/layers.h"

namespace muster::train {
namespace {

template <typename Real>
Real value(Activation activation, Real x) {
  if (activation == Activation::kRelu2) return x > 0 ? x * x : 0;
  return x / 2 * (1 + std::erf(x * std::numbers::sqrt2_v<Real> / 2));
}

template <typename Real>
Real slope(Activation activation, Real x) {
  if (activation == Activation::kRelu2) return x > 0 ? 2 * x : 0;
  const Real normal = std::exp(-x * x / 2) * std::numbers::inv_sqrtpi_v<Real> / std::numbers::sqrt2_v<Real>;
  return (1 + std::erf(x * std::numbers::sqrt2_v<Real> / 2)) / 2 + x * normal;
}

}  // namespace

template <typename Real>
Mlp<Real>::Mlp(const ModelConfig& config, int64_t rows)
    : config_(config),
      rows_(rows),
      up_(static_cast<size_t>(rows * config.mlp_width())),
      active_(up_.size()),
      dup_(up_.size()) {}

template <typename Real>
void Mlp<Real>::forward(const LayerWeights<const Real>& weights, const Real* h, Real* out) {
  const int64_t hidden = config_.mlp_width();
  multiply({h, rows_, config_.width}, weights.up.transposed(), {up_.data(), rows_, hidden});
  for (size_t i = 0; i < up_.size(); ++i) active_[i] = value(config_.activation, up_[i]);
  multiply({active_.data(), rows_, hidden}, weights.down.transposed(), {out, rows_, config_.width},
           {.into = Into::kAdd});
}

template <typename Real>
void Mlp<Real>::backward(const LayerWeights<const Real>& weights, const LayerWeights<Real>& gradients, const Real* h,
                         const Real* dout, Real* dh) {
  const int64_t hidden = config_.mlp_width();
  const Matrix<const Real> dout_rows(dout, rows_, config_.width);
  const Matrix<const Real> dup(dup_.data(), rows_, hidden);
  multiply(dout_rows.transposed(), {active_.data(), rows_, hidden}, gradients.down, {.into = Into::kAdd});
  multiply(dout_rows, weights.down, {dup_.data(), rows_, hidden});
  for (size_t i = 0; i < up_.size(); ++i) dup_[i] *= slope(config_.activation, up_[i]);
  multiply(dup.transposed(), {h, rows_, config_.width}, gradients.up, {.into = Into::kAdd});
  multiply(dup, weights.up, {dh, rows_, config_.width}, {.into = Into::kAdd});
}

template class Mlp<float>;
template class Mlp<double>;

}  // namespace muster::train
