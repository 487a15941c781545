// The r x r part of the cap on the largest singular values, in double, on one thread. Symmetric matrices are given by
// their upper triangles; what is below is neither read nor meant. Zero gives zero, and NaN gives NaN.
#pragma once

#include <cstdint>

namespace muster::kernels::cpu {

// gram = V^T V becomes U, and inverse U^-1, with U upper triangular and U^T U = V^T V + kGramRidge tr(V^T V) I: then
// orth(V) = V U^-1. Of `inverse`, zeros are written below the diagonal.
void factor_gram(int64_t r, double* gram, double* inverse);

// The cap in an orthonormal basis Q U^-1, where N = Q^T Q + ridge = U^T U: X <- X - Q U^-1 K U^-T Q^T X with
// K = I - c U H U^T. Q need not be orthonormal to rounding, and U^-1 would amplify the rounding of M = N^-1 - c H.
struct CapCore {
  int64_t r = 0;
  const double* u = nullptr;
  const double* u_inverse = nullptr;
  double* t = nullptr;        // in: F^T F with F = X^T Q U^-1; lost
  double* scratch = nullptr;  // r x (r + 1)
  double* change = nullptr;   // out: c U H U^T, which is I - K
};
void find_change(const CapCore& core);

}  // namespace muster::kernels::cpu
