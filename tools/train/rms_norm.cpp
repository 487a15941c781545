#include <cmath>

#include "train/layers.h"

namespace muster::train {

constexpr double kEps = 1e-6;

template <typename Real>
RmsNorm<Real>::RmsNorm(int64_t rows, int64_t width)
    : rows_(rows), width_(width), y_(static_cast<size_t>(rows * width)), inverse_(static_cast<size_t>(rows)) {}

template <typename Real>
const Real* RmsNorm<Real>::forward(const Real* x) {
  const Real count = static_cast<Real>(width_);
  for (int64_t i = 0; i < rows_; ++i) {
    const Real* const from = x + i * width_;
    Real* const to = y_.data() + i * width_;
    Real sum = 0;
    for (int64_t j = 0; j < width_; ++j) sum += from[j] * from[j];
    inverse_[i] = 1 / std::sqrt(sum / count + static_cast<Real>(kEps));
    for (int64_t j = 0; j < width_; ++j) to[j] = from[j] * inverse_[i];
  }
  return y_.data();
}

template <typename Real>
void RmsNorm<Real>::backward(const Real* dy, Real* dx) const {
  const Real count = static_cast<Real>(width_);
  for (int64_t i = 0; i < rows_; ++i) {
    const Real* const y = y_.data() + i * width_;
    const Real* const from = dy + i * width_;
    Real* const to = dx + i * width_;
    Real along = 0;
    for (int64_t j = 0; j < width_; ++j) along += from[j] * y[j];
    along /= count;
    for (int64_t j = 0; j < width_; ++j) to[j] += inverse_[i] * (from[j] - along * y[j]);
  }
}

template class RmsNorm<float>;
template class RmsNorm<double>;

}  // namespace muster::train
