// NorMuon's factors for a batch of orthogonal factors of one shape.
#pragma once

#include <cstdint>

#include "kernels/cuda/product.h"
#include "kernels/cuda/queue.h"
#include "kernels/kernels.h"

namespace muster::kernels::cuda {

// Sums of squares come in parts, to be added in order: of matrix m, part p and line i at (m * parts + p) * lines + i.
struct LineSums {
  LineAxis axis = LineAxis::kRows;
  MatrixShape shape{};
  int64_t parts = 0;

  LineSums(LineAxis axis, MatrixShape shape);
  int64_t lines() const { return axis == LineAxis::kRows ? shape.rows : shape.columns; }
  int64_t length() const { return axis == LineAxis::kRows ? shape.columns : shape.rows; }
};

// On the device.
struct NorMuon {
  const PolishMatrix* matrices = nullptr;
  const PolishOptions::Lines* options = nullptr;
  float* squares = nullptr;  // of LineSums
  float* factors = nullptr;  // one a line
};

// Advances the variances and finds what every line is to be multiplied with.
void find_normuon_factors(Half type, const Matrices& o, int64_t batch, const LineSums& sums, const NorMuon& normuon,
                          Queue& queue);

}  // namespace muster::kernels::cuda
