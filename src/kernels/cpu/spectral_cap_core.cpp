#include "kernels/cpu/spectral_cap_core.h"

#include <algorithm>
#include <cmath>

#include "kernels/spectral_cap.h"

namespace muster::kernels::cpu {
namespace {

double trace(int64_t r, const double* a) {
  double sum = 0;
  for (int64_t i = 0; i < r; ++i) sum += a[i * r + i];
  return sum;
}

// y += factor x, from `begin` on
void add_row(double factor, const double* x, double* y, int64_t begin, int64_t r) {
  for (int64_t j = begin; j < r; ++j) y[j] += factor * x[j];
}

// -A^-1 in place of a positive definite A, by sweeping one row after the other; `row` has room for r.
void negative_inverse(int64_t r, double* a, double* row) {
  for (int64_t k = 0; k < r; ++k) {
    const double pivot = 1 / a[k * r + k];
    for (int64_t j = 0; j < k; ++j) row[j] = a[j * r + k];
    std::copy_n(a + k * r + k, r - k, row + k);
    for (int64_t i = 0; i < r; ++i) {
      if (i != k) add_row(-pivot * row[i], row, a + i * r, i, r);
    }
    for (int64_t j = 0; j < k; ++j) a[j * r + k] = row[j] * pivot;
    for (int64_t j = k + 1; j < r; ++j) a[k * r + j] = row[j] * pivot;
    a[k * r + k] = -pivot;
  }
}

// tr(U^T T U), for an upper triangular U
double trace_in_basis(const CapCore& core) {
  const int64_t r = core.r;
  double sum = 0;
  for (int64_t i = 0; i < r; ++i) {
    for (int64_t j = i; j < r; ++j) {
      double dot = 0;
      for (int64_t k = j; k < r; ++k) dot += core.u[i * r + k] * core.u[j * r + k];
      sum += (i == j ? 1 : 2) * core.t[i * r + j] * dot;
    }
  }
  return sum;
}

}  // namespace

void factor_gram(int64_t r, double* gram, double* inverse) {
  const double sum = trace(r, gram);
  std::fill_n(inverse, r * r, 0.0);
  if (sum == 0) return;
  for (int64_t k = 0; k < r; ++k) gram[k * r + k] += kGramRidge * sum;
  for (int64_t k = 0; k < r; ++k) {
    double* const row = gram + k * r;
    const double factor = 1 / std::sqrt(row[k]);
    for (int64_t j = k; j < r; ++j) row[j] *= factor;
    for (int64_t i = k + 1; i < r; ++i) add_row(-row[i], row, gram + i * r, i, r);
  }
  for (int64_t i = r - 1; i >= 0; --i) {
    double* const row = inverse + i * r;
    row[i] = 1;
    for (int64_t k = i + 1; k < r; ++k) add_row(-gram[i * r + k], inverse + k * r, row, k, r);
    const double factor = 1 / gram[i * r + i];
    for (int64_t j = i; j < r; ++j) row[j] *= factor;
  }
}

// In this basis N is I, and T is U^-T (E E^T + ridge) U^-1.
void find_change(const CapCore& core) {
  const int64_t r = core.r;
  const double sum = trace_in_basis(core);
  std::fill_n(core.change, r * r, 0.0);
  if (sum == 0) return;
  const double ridge = kGramRidge * sum;
  const double d = kCapFloor * (sum + ridge * static_cast<double>(r));
  for (int64_t k = 0; k < r; ++k) {
    const double* const row = core.u_inverse + k * r;
    for (int64_t i = k; i < r; ++i) add_row(ridge * row[i], row, core.t + i * r, i, r);
  }
  double* const row = core.scratch;
  double* const shifted = core.scratch + r;
  const auto invert = [&](double shift) {
    for (int64_t i = 0; i < r; ++i) {
      for (int64_t j = i; j < r; ++j) shifted[i * r + j] = core.t[i * r + j] / d;
      shifted[i * r + i] += shift;
    }
    negative_inverse(r, shifted, row);
  };
  invert(1);
  const double c = kCapLevel * std::sqrt(static_cast<double>(r) / -trace(r, shifted));
  for (const Pole& pole : kInverseRootPoles) {
    invert(1 + pole.shift);
    for (int64_t i = 0; i < r; ++i) add_row(-c * pole.weight, shifted + i * r, core.change + i * r, i, r);
  }
}

}  // namespace muster::kernels::cpu
