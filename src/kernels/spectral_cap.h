// The cap on the largest singular values of a matrix, as every backend computes it before the first step of
// Newton-Schulz. docs/explanation/spectral-cap.md explains it.
//
// X is n x m, n <= m; a tall matrix is capped transposed. r is the number of columns of the sketch.
//
//   P = orth(X^T S)    m x r; S: n x r random signs
//   Q = orth(X P)      n x r: about the largest left singular vectors. If n <= r: Q = I, and n takes the place of r
//   E = Q^T X, N = Q^T Q, T = E E^T
//   X <- X - Q M E,    M = N^-1 - c H, so that the r largest singular values become about c sqrt(d)
//
//   orth(V) = V L^-T   with gram(V) = L L^T, where gram(V) = V^T V + kGramRidge tr(V^T V) I, as for N and T too
//   d = kCapFloor tr(T)
//   H = sum over kInverseRootPoles of weight (T / d + (1 + shift) N)^-1, about (T / d + N)^(-1/2)
//   c = kCapLevel sqrt(r / tr((T / d + N)^-1 N)), so that c sqrt(d) is kCapLevel times the root mean inverse square of
//       the singular values found
//
// Singular vectors, and so the polar factor, stay as far as Q spans singular vectors. Zero stays zero.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/host_device.h"

namespace muster::kernels {

// What Coefficients::sketch can be, besides 0: without a cap.
inline constexpr std::array<int, 3> kSketchColumns{32, 64, 96};
inline constexpr int kMostSketchColumns = kSketchColumns.back();
constexpr bool is_sketch(int columns) {
  return columns == 0 || std::ranges::find(kSketchColumns, columns) != kSketchColumns.end();
}

// The signs of row `row` of S: element (row, j) is -1 if bit j % 32 of word j / 32 is set, else 1.
MUSTER_HOST_DEVICE inline uint32_t sketch_signs(uint32_t row, uint32_t word) {
  uint32_t h = (row + 1) * 0x9e3779b9U + word * 0x85ebca6bU;
  h = (h ^ (h >> 16)) * 0x7feb352dU;
  h = (h ^ (h >> 15)) * 0x846ca68bU;
  return h ^ (h >> 16);
}

// Below 1, because the values that stay decide the norm more than those that are capped.
inline constexpr double kCapLevel = 0.3;
// No singular value is divided by more than about 2^7 / kCapLevel. Rounding Q to bf16 leaves up to 2^-9 of a singular
// value outside its span; what the cap leaves inside, 2^-8.7, must be larger, or rounding decides where the singular
// vector is.
inline constexpr double kCapFloor = 0x1p-14;
// Keeps Gram matrices positive definite when they are singular but for rounding.
inline constexpr double kGramRidge = 0x1p-22;

// x^(-1/2) is the sum of weight / (x + shift), within 3.5 % for x from 1 to 1 + 1 / kCapFloor.
struct Pole {
  double shift;
  double weight;
};
inline constexpr std::array<Pole, 3> kInverseRootPoles{{{1.5314329810549612, 2.1057724793059793},
                                                        {128.00472036710346, 15.090007938080543},
                                                        {10699.185724281857, 176.00996502182198}}};

}  // namespace muster::kernels
