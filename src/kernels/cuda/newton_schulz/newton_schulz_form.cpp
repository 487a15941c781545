#include "kernels/cuda/newton_schulz/newton_schulz_form.h"

#include <algorithm>
#include <cmath>

namespace muster::kernels::cuda {

namespace {

// True if the largest singular value of the result stays bounded when every step's input is off by a factor of 1 - off
// to 1 + off.
bool tolerates(const Coefficients& coefficients, double off) {
  constexpr int kPoints = 1000;
  constexpr double kMost = 1.5;
  for (int i = 1; i <= kPoints; ++i) {
    double low = i / (kPoints * coefficients.safety);
    double high = low;
    for (const Coefficients::Step& step : coefficients.steps) {
      const auto value = [&](double x) { return x * (step.a + x * x * (step.b + x * x * step.c)); };
      const double images[] = {value(low * (1 - off)), value(low * (1 + off)), value(high * (1 - off)),
                               value(high * (1 + off))};
      low = *std::min_element(images, images + 4);
      high = *std::max_element(images, images + 4);
    }
    if (!(std::max(std::abs(low), std::abs(high)) <= kMost)) return false;
  }
  return true;
}

}  // namespace

bool long_enough_for_gram(MatrixShape shape) {
  return std::max(shape.rows, shape.columns) >= 2 * std::min(shape.rows, shape.columns);
}

bool tolerates_gram(const Coefficients& coefficients) { return tolerates(coefficients, 0.02); }

Form form_of(MatrixShape shape, const Coefficients& coefficients) {
  return long_enough_for_gram(shape) && tolerates_gram(coefficients) ? Form::kGram : Form::kStandard;
}

bool restarts(const Coefficients& coefficients, size_t step) {
  constexpr double kSlope = 64;  // of the product of polynomials at 0; of capped3: 62
  double slope = 1;
  for (const Coefficients::Step& s : coefficients.steps) slope *= s.a;
  const bool flat = coefficients.sketch > 0 && coefficients.steps.size() <= 3 && slope <= kSlope;
  return step % 3 == 2 && !flat;
}

double half_safety(const Coefficients& coefficients) {
  constexpr double kMargin = 1.02;
  return coefficients.safety * (tolerates(coefficients, 0.01) ? 1 : kMargin);
}

double newton_schulz_flops(Form form, MatrixShape shape, const Coefficients& coefficients) {
  const int64_t n = std::min(shape.rows, shape.columns);
  Gemm square;
  square.a = {nullptr, n, n, n, 0};
  square.d = square.a;
  square.symmetric = true;
  square.batch = 1;
  Gemm gram = square;
  gram.a.columns = std::max(shape.rows, shape.columns);
  Gemm x;
  x.a = square.a;
  x.d = {nullptr, shape.rows, shape.columns, 0, 0};
  x.batch = 1;
  const size_t steps = coefficients.steps.size();
  const auto count = static_cast<double>(steps);
  if (form == Form::kStandard) return count * (flops(gram) + flops(square) + flops(x));
  double starts = 1;
  for (size_t s = 0; s < steps; ++s) starts += restarts(coefficients, s) ? 1 : 0;
  return starts * (flops(gram) + flops(x)) + (4 * count - 3 * starts) * flops(square);
}

}  // namespace muster::kernels::cuda
