// Singular values of what was orthogonalized.
#pragma once

#include <cmath>

#include "reference/reference.h"

namespace muster::kernels::cuda {

inline reference::Matrix gram_of(const reference::Matrix& o) {
  const reference::Matrix t = reference::transpose(o);
  return o.rows <= o.columns ? reference::multiply(o, t) : reference::multiply(t, o);
}

// The largest singular value, by as many squarings of the Gram matrix as leave the others nothing.
inline double spectral_norm(const reference::Matrix& o) {
  reference::Matrix power = gram_of(o);
  double log_scale = 0;
  double weight = 0.5;
  for (int i = 0; i < 8; ++i, weight /= 2) {
    const double norm = reference::frobenius_norm(power);
    log_scale += weight * std::log(norm);
    for (double& value : power.data) value /= norm;
    power = reference::multiply(power, power);
  }
  return std::exp(log_scale + weight * std::log(reference::frobenius_norm(power)));
}

}  // namespace muster::kernels::cuda
