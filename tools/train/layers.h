// What the model is made of besides products: normalization, attention and the MLP, forward and backward, for float and
// double. Rows are tokens: `sequences` times `context` of them, a sequence after another. Each part keeps what its
// backward needs from its last forward; backward adds to the gradients of weights and of inputs.
#pragma once

#include <cstdint>
#include <vector>

#include "train/model.h"

namespace muster::train {

// y = x / sqrt(mean(x^2) + eps), row by row.
template <typename Real>
class RmsNorm {
 public:
  RmsNorm(int64_t rows, int64_t width);
  const Real* forward(const Real* x);             // rows x width, kept here
  void backward(const Real* dy, Real* dx) const;  // dx is added to
  const Real* output() const { return y_.data(); }

 private:
  int64_t rows_;
  int64_t width_;
  std::vector<Real> y_;
  std::vector<Real> inverse_;  // of the root mean square, one a row
};

// Turns pairs of a head's numbers by angles that grow with the place in the sequence.
template <typename Real>
class Rotary {
 public:
  Rotary(int64_t context, int64_t head_width);
  enum class Direction : uint8_t { kForward, kBack };
  // A matrix of context rows, one head wide.
  void turn(Matrix<Real> head, Direction direction) const;

 private:
  int64_t half_;
  std::vector<Real> cosine_;  // context x half
  std::vector<Real> sine_;
};

template <typename Real>
class Attention {
 public:
  Attention(const ModelConfig& config, int64_t sequences);
  // out += what attention makes of h.
  void forward(const LayerWeights<const Real>& weights, const Real* h, Real* out);
  void backward(const LayerWeights<const Real>& weights, const LayerWeights<Real>& gradients, const Real* h,
                const Real* dout, Real* dh);

 private:
  void mix(int64_t sequence, int64_t head);
  void mix_backward(int64_t sequence, int64_t head);
  void open_gates(const LayerWeights<const Real>& weights, Matrix<const Real> h);
  void gates_backward(const LayerWeights<const Real>& weights, const LayerWeights<Real>& gradients,
                      Matrix<const Real> h, Matrix<Real> dh);
  Matrix<const Real> output_projection(const LayerWeights<const Real>& weights);
  void projection_backward(const LayerWeights<const Real>& weights, const LayerWeights<Real>& gradients,
                           Matrix<const Real> dout);

  Matrix<Real> rows(std::vector<Real>& data) const { return {data.data(), rows_, config_.width}; }
  Matrix<Real> head(std::vector<Real>& data, int64_t sequence, int64_t head) const;
  Matrix<Real> probabilities(int64_t sequence, int64_t head);

  ModelConfig config_;
  int64_t sequences_;
  int64_t rows_;
  Rotary<Real> rotary_;
  // rows x width.
  std::vector<Real> q_, k_, v_;
  std::vector<Real> mixed_;  // before the gates
  std::vector<Real> gated_;
  std::vector<Real> dq_, dk_, dv_, dmixed_;
  std::vector<Real> p_;                       // sequences x heads x context x context
  std::vector<Real> dp_;                      // context x context
  std::vector<Real> gate_, dgate_;            // rows x heads
  std::vector<Real> scaled_, dscaled_;        // width x width: the output projection, times its scale
  std::vector<Real> projected_, dprojected_;  // rows x width: the projection's output before its scale
};

template <typename Real>
class Mlp {
 public:
  Mlp(const ModelConfig& config, int64_t rows);
  void forward(const LayerWeights<const Real>& weights, const Real* h, Real* out);  // out is added to
  void backward(const LayerWeights<const Real>& weights, const LayerWeights<Real>& gradients, const Real* h,
                const Real* dout, Real* dh);

 private:
  ModelConfig config_;
  int64_t rows_;
  std::vector<Real> up_;      // rows x mlp_width, before the activation
  std::vector<Real> active_;  // after it
  std::vector<Real> dup_;
};

}  // namespace muster::train
