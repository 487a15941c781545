#include <algorithm>
#include <cmath>

#include "train/layers.h"

namespace muster::train {

template <typename Real>
Rotary<Real>::Rotary(int64_t context, int64_t head_width) : half_(head_width / 2) {
  constexpr double kSlowest = 10000;
  for (int64_t t = 0; t < context; ++t) {
    for (int64_t i = 0; i < half_; ++i) {
      const double rate = std::pow(kSlowest, -static_cast<double>(i) / static_cast<double>(half_));
      cosine_.push_back(static_cast<Real>(std::cos(static_cast<double>(t) * rate)));
      sine_.push_back(static_cast<Real>(std::sin(static_cast<double>(t) * rate)));
    }
  }
}

template <typename Real>
void Rotary<Real>::turn(Matrix<Real> head, Direction direction) const {
  const Real sign = direction == Direction::kForward ? 1 : -1;
  for (int64_t t = 0; t < head.rows; ++t) {
    Real* const row = head.data + t * head.row_stride;
    const Real* const cosine = cosine_.data() + t * half_;
    const Real* const sine = sine_.data() + t * half_;
    for (int64_t i = 0; i < half_; ++i) {
      const Real a = row[i];
      const Real b = row[half_ + i];
      row[i] = a * cosine[i] - sign * b * sine[i];
      row[half_ + i] = b * cosine[i] + sign * a * sine[i];
    }
  }
}

template <typename Real>
Attention<Real>::Attention(const ModelConfig& config, int64_t sequences)
    : config_(config),
      sequences_(sequences),
      rows_(sequences * config.context),
      rotary_(config.context, config.head_width()) {
  const auto size = static_cast<size_t>(rows_ * config.width);
  for (auto* const data : {&q_, &k_, &v_, &mixed_, &gated_, &dq_, &dk_, &dv_, &dmixed_}) data->resize(size);
  if (config.residual_scale == ResidualScale::kOutput) {
    for (auto* const data : {&projected_, &dprojected_}) data->resize(size);
  }
  p_.resize(static_cast<size_t>(rows_ * config.heads * config.context));
  dp_.resize(static_cast<size_t>(config.context * config.context));
  for (auto* const data : {&gate_, &dgate_}) data->resize(static_cast<size_t>(rows_ * config.heads));
  for (auto* const data : {&scaled_, &dscaled_}) data->resize(static_cast<size_t>(config.width * config.width));
}

template <typename Real>
Matrix<Real> Attention<Real>::head(std::vector<Real>& data, int64_t sequence, int64_t head) const {
  const int64_t wide = config_.head_width();
  return rows(data).block(sequence * config_.context, head * wide, config_.context, wide);
}

template <typename Real>
Matrix<Real> Attention<Real>::probabilities(int64_t sequence, int64_t head) {
  const int64_t context = config_.context;
  return {p_.data() + (sequence * config_.heads + head) * context * context, context, context};
}

template <typename Real>
void Attention<Real>::forward(const LayerWeights<const Real>& weights, const Real* h, Real* out) {
  const Matrix<const Real> input(h, rows_, config_.width);
  multiply(input, weights.q.transposed(), rows(q_));
  multiply(input, weights.k.transposed(), rows(k_));
  multiply(input, weights.v.transposed(), rows(v_));
  for (int64_t s = 0; s < sequences_; ++s) {
    for (int64_t j = 0; j < config_.heads; ++j) mix(s, j);
  }
  open_gates(weights, input);
  const Matrix<const Real> projection = output_projection(weights);
  if (config_.residual_scale != ResidualScale::kOutput) {
    multiply(rows(gated_), projection.transposed(), {out, rows_, config_.width}, {.into = Into::kAdd});
    return;
  }
  multiply(rows(gated_), projection.transposed(), rows(projected_));
  for (size_t i = 0; i < projected_.size(); ++i) out[i] += *weights.scale * projected_[i];
}

template <typename Real>
void Attention<Real>::backward(const LayerWeights<const Real>& weights, const LayerWeights<Real>& gradients,
                               const Real* h, const Real* dout, Real* dh) {
  const Matrix<const Real> input(h, rows_, config_.width);
  const Matrix<Real> dinput(dh, rows_, config_.width);
  if (config_.residual_scale == ResidualScale::kOutput) {
    Real along = 0;
    for (size_t i = 0; i < projected_.size(); ++i) {
      along += dout[i] * projected_[i];
      dprojected_[i] = *weights.scale * dout[i];
    }
    *gradients.scale += along;
    dout = dprojected_.data();
  }
  projection_backward(weights, gradients, {dout, rows_, config_.width});
  gates_backward(weights, gradients, input, dinput);
  for (int64_t s = 0; s < sequences_; ++s) {
    for (int64_t j = 0; j < config_.heads; ++j) mix_backward(s, j);
  }
  const auto linear = [&](std::vector<Real>& dy, Matrix<const Real> weight, Matrix<Real> gradient) {
    multiply(rows(dy).transposed(), input, gradient, {.into = Into::kAdd});
    multiply(rows(dy), weight, dinput, {.into = Into::kAdd});
  };
  linear(dq_, weights.q, gradients.q);
  linear(dk_, weights.k, gradients.k);
  linear(dv_, weights.v, gradients.v);
}

// One head of one sequence: each token takes the mean of the values at and before it, by the softmax of q k.
template <typename Real>
void Attention<Real>::mix(int64_t sequence, int64_t head) {
  const Matrix<Real> q = this->head(q_, sequence, head);
  const Matrix<Real> k = this->head(k_, sequence, head);
  rotary_.turn(q, Rotary<Real>::Direction::kForward);
  rotary_.turn(k, Rotary<Real>::Direction::kForward);
  const Matrix<Real> p = probabilities(sequence, head);
  multiply(q, k.transposed(), p, {.alpha = 1 / std::sqrt(static_cast<double>(config_.head_width()))});
  for (int64_t t = 0; t < p.rows; ++t) {
    Real* const row = p.data + t * p.row_stride;
    const Real largest = *std::max_element(row, row + t + 1);
    Real sum = 0;
    for (int64_t i = 0; i <= t; ++i) sum += row[i] = std::exp(row[i] - largest);
    for (int64_t i = 0; i <= t; ++i) row[i] /= sum;
    std::fill(row + t + 1, row + p.columns, Real{0});
  }
  multiply(p, this->head(v_, sequence, head), this->head(mixed_, sequence, head));
}

template <typename Real>
void Attention<Real>::mix_backward(int64_t sequence, int64_t head) {
  const Matrix<Real> p = probabilities(sequence, head);
  const Matrix<Real> dmixed = this->head(dmixed_, sequence, head);
  const Matrix<Real> dp(dp_.data(), config_.context, config_.context);
  multiply(p.transposed(), dmixed, this->head(dv_, sequence, head));
  multiply(dmixed, this->head(v_, sequence, head).transposed(), dp);
  for (int64_t t = 0; t < p.rows; ++t) {
    const Real* const row = p.data + t * p.row_stride;
    Real* const drow = dp.data + t * dp.row_stride;
    Real along = 0;
    for (int64_t i = 0; i <= t; ++i) along += drow[i] * row[i];
    for (int64_t i = 0; i < p.columns; ++i) drow[i] = row[i] * (drow[i] - along);
  }
  const ProductOptions scaled{.alpha = 1 / std::sqrt(static_cast<double>(config_.head_width()))};
  const Matrix<Real> dq = this->head(dq_, sequence, head);
  const Matrix<Real> dk = this->head(dk_, sequence, head);
  multiply(dp, this->head(k_, sequence, head), dq, scaled);
  multiply(dp.transposed(), this->head(q_, sequence, head), dk, scaled);
  rotary_.turn(dq, Rotary<Real>::Direction::kBack);
  rotary_.turn(dk, Rotary<Real>::Direction::kBack);
}

template <typename Real>
void Attention<Real>::open_gates(const LayerWeights<const Real>& weights, Matrix<const Real> h) {
  gated_ = mixed_;
  if (!config_.gates) return;
  multiply(h.block(0, 0, rows_, config_.gate_inputs()), weights.gate.transposed(),
           {gate_.data(), rows_, config_.heads});
  const int64_t wide = config_.head_width();
  for (size_t i = 0; i < gate_.size(); ++i) {
    gate_[i] = 1 / (1 + std::exp(-gate_[i]));
    Real* const y = gated_.data() + static_cast<int64_t>(i) * wide;
    for (int64_t c = 0; c < wide; ++c) y[c] *= gate_[i];
  }
}

// dmixed_ is that of what the gates let through; then, of what came to them.
template <typename Real>
void Attention<Real>::gates_backward(const LayerWeights<const Real>& weights, const LayerWeights<Real>& gradients,
                                     Matrix<const Real> h, Matrix<Real> dh) {
  if (!config_.gates) return;
  const int64_t wide = config_.head_width();
  const int64_t inputs = config_.gate_inputs();
  for (size_t i = 0; i < gate_.size(); ++i) {
    Real* const dy = dmixed_.data() + static_cast<int64_t>(i) * wide;
    const Real* const y = mixed_.data() + static_cast<int64_t>(i) * wide;
    Real opening = 0;
    for (int64_t c = 0; c < wide; ++c) opening += dy[c] * y[c];
    for (int64_t c = 0; c < wide; ++c) dy[c] *= gate_[i];
    dgate_[i] = opening * gate_[i] * (1 - gate_[i]);
  }
  const Matrix<const Real> dgate(dgate_.data(), rows_, config_.heads);
  multiply(dgate.transposed(), h.block(0, 0, rows_, inputs), gradients.gate, {.into = Into::kAdd});
  multiply(dgate, weights.gate, dh.block(0, 0, rows_, inputs), {.into = Into::kAdd});
}

// Width times width numbers are scaled, not rows times width.
template <typename Real>
Matrix<const Real> Attention<Real>::output_projection(const LayerWeights<const Real>& weights) {
  if (config_.residual_scale != ResidualScale::kWeights) return weights.o;
  for (size_t i = 0; i < scaled_.size(); ++i) scaled_[i] = *weights.scale * weights.o.data[i];
  return {scaled_.data(), config_.width, config_.width};
}

template <typename Real>
void Attention<Real>::projection_backward(const LayerWeights<const Real>& weights, const LayerWeights<Real>& gradients,
                                          Matrix<const Real> dout) {
  multiply(dout, output_projection(weights), rows(dmixed_));
  if (config_.residual_scale != ResidualScale::kWeights) {
    multiply(dout.transposed(), rows(gated_), gradients.o, {.into = Into::kAdd});
    return;
  }
  multiply(dout.transposed(), rows(gated_), {dscaled_.data(), config_.width, config_.width});
  Real along = 0;
  for (size_t i = 0; i < dscaled_.size(); ++i) {
    along += dscaled_[i] * weights.o.data[i];
    gradients.o.data[i] += *weights.scale * dscaled_[i];
  }
  *gradients.scale += along;
}

template class Rotary<float>;
template class Rotary<double>;
template class Attention<float>;
template class Attention<double>;

}  // namespace muster::train
