// Sets that cap the largest singular values, on spectra like those of momentum: a few large singular values, and a long
// tail that Newton-Schulz does not reach otherwise.
#include <cmath>

#include <gtest/gtest.h>

#include "kernels/cuda/newton_schulz/cuda_cublas.h"
#include "orthogonalizing.h"
#include "reference/reference.h"
#include "spectra.h"
#include "support/reference_options.h"

namespace muster::kernels::cuda {
namespace {

using reference::Matrix;

class SpectralCap : public OrthogonalizeTest, public testing::WithParamInterface<MatrixShape> {};

// By as many steps as take singular values from 1e-6 of the norm to 1.
Matrix polar_factor(const Matrix& x) {
  reference::NewtonSchulz exact;
  exact.steps.assign(30, {1.875, -1.25, 0.375});
  return reference::newton_schulz(x, exact);
}

Matrix orthonormal(MatrixShape shape, unsigned seed) {
  const Values values = random_matrix(shape, seed);
  return polar_factor({shape.rows, shape.columns, reference::Vector(values.begin(), values.end())});
}

// A matrix in bf16 whose i-th singular value is about value(i), and its polar factor.
struct Input {
  Values values;
  Matrix polar;
};
template <typename F>
Input with_singular_values(MatrixShape shape, const F& value) {
  const int64_t n = std::min(shape.rows, shape.columns);
  const Matrix u = orthonormal({shape.rows, n}, 1);
  Matrix vt = orthonormal({n, shape.columns}, 2);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < shape.columns; ++j) vt.at(i, j) *= value(i);
  }
  Matrix x = reference::multiply(u, vt);
  for (double& element : x.data) element = static_cast<double>(to_bf16(static_cast<float>(element)));
  return {Values(x.data.begin(), x.data.end()), polar_factor(x)};
}

struct Closeness {
  double angle;    // 1 - cos to the polar factor
  double largest;  // singular value
};
Closeness closeness(std::string_view set, MatrixShape shape, const Input& input,
                    Orthogonalizer::Gemms gemms = Orthogonalizer::Gemms::kBest) {
  OrthogonalizeOptions options;
  options.coefficients = coefficients(set);
  const Values values = orthogonalized(options, shape, {input.values}, Place::kEven, gemms)[0];
  const Matrix o{shape.rows, shape.columns, reference::Vector(values.begin(), values.end())};
  double product = 0;
  for (size_t i = 0; i < o.data.size(); ++i) product += o.data[i] * input.polar.data[i];
  const double norms = reference::frobenius_norm(o) * reference::frobenius_norm(input.polar);
  return {1 - product / norms, spectral_norm(o)};
}

// Stable rank 2, and a median of 1/300 of the largest.
double like_momentum(int64_t i, int64_t n) {
  return std::pow(1 + static_cast<double>(i), -1.0) *
         std::pow(0.1, 2 * static_cast<double>(i) / static_cast<double>(n));
}

TEST_P(SpectralCap, ComesCloserToThePolarFactorWithFewerSteps) {
  const MatrixShape shape = GetParam();
  const int64_t n = std::min(shape.rows, shape.columns);
  const Input input = with_singular_values(shape, [n](int64_t i) { return like_momentum(i, n); });
  const double usual = closeness("polar_express", shape, input).angle;
  for (const char* set : {"capped3", "capped4"}) {
    for (const auto gemms : {Orthogonalizer::Gemms::kBest, Orthogonalizer::Gemms::kCublas}) {
      if (gemms == Orthogonalizer::Gemms::kCublas && !Cublas::available()) continue;
      const Closeness capped = closeness(set, shape, input, gemms);
      EXPECT_LT(capped.angle, 0.7 * usual) << set;
      EXPECT_LT(capped.largest, 1.25) << set;
    }
  }
}

// Where a sketch cannot tell singular vectors apart, capping any of them must not hurt.
TEST_P(SpectralCap, LeavesClustersOfLargeSingularValuesBounded) {
  const MatrixShape shape = GetParam();
  for (const int64_t large : {1, 24, 32, 33, 64, 96, 97, 128}) {
    for (const double rest : {0.0, 1e-2, 1e-1}) {
      const Input input = with_singular_values(shape, [&](int64_t i) { return i < large ? 1 : rest; });
      for (const char* set : {"capped3", "capped4"}) {
        const Closeness capped = closeness(set, shape, input);
        EXPECT_LT(capped.largest, 1.3) << set << ", " << large << " large, rest " << rest;
        if (rest >= 1e-1) {
          EXPECT_LT(capped.angle, 0.05) << set << ", " << large << " large, rest " << rest;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, SpectralCap,
                         testing::Values(MatrixShape{256, 256}, MatrixShape{192, 576}, MatrixShape{576, 192},
                                         MatrixShape{80, 80}, MatrixShape{300, 40}),
                         shape_name);

}  // namespace
}  // namespace muster::kernels::cuda
