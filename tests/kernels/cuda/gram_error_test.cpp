// The distance of orthogonal factors from orthogonality, as measured on the device.
#include <cmath>

#include <gtest/gtest.h>

#include "kernels/cuda/newton_schulz/cuda_cublas.h"
#include "orthogonalizing.h"

namespace muster::kernels::cuda {
namespace {

using GramError = OrthogonalizeTest;

struct Measured {
  std::vector<Values> results;
  std::vector<double> errors;
};

// Orthogonalizes three matrices, of which the second is not measured and the third sits out.
Measured measured(const OrthogonalizeOptions& options, MatrixShape shape, const std::vector<Values>& inputs,
                  Orthogonalizer::Gemms gemms) {
  LaunchQueue queue(nullptr);
  Orthogonalizer orthogonalizer(0, gemms);
  const OnDevice batch(options.wire, Place::kEven, inputs);
  const size_t count = inputs.size();
  const DeviceVector<double> errors(std::vector<double>(count, -1));
  const DeviceVector<float> variances(Values(count * static_cast<size_t>(std::max(shape.rows, shape.columns))));
  const DeviceVector<int32_t> active(std::vector<int32_t>{1, 1, 0});
  std::vector<UpdateMatrix> matrices;
  for (size_t m = 0; m < count; ++m) {
    float* const variance = variances.data() + m * static_cast<size_t>(std::max(shape.rows, shape.columns));
    matrices.push_back({batch.at(m), variance, active.data() + m, m == 1 ? nullptr : errors.data() + m});
  }
  const int64_t bytes = orthogonalizer.workspace(shape, static_cast<int64_t>(count), options);
  const DeviceVector<std::byte> workspace(static_cast<size_t>(bytes));
  settle();
  orthogonalizer.run({options, shape, matrices, {workspace.data(), bytes}}, queue);
  queue.synchronize();
  Measured out;
  for (size_t m = 0; m < count; ++m) out.results.push_back(batch.read(m));
  out.errors = errors.values();
  return out;
}

// ||G - I||_F and ||G||_F along the short side, in double.
struct Exact {
  Exact(const Values& o, MatrixShape shape) {
    const bool wide = shape.rows <= shape.columns;
    const int64_t n = wide ? shape.rows : shape.columns;
    const int64_t length = wide ? shape.columns : shape.rows;
    const auto at = [&](int64_t line, int64_t k) {
      return static_cast<double>(o[static_cast<size_t>(wide ? line * shape.columns + k : k * shape.columns + line)]);
    };
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < length; ++k) sum += at(i, k) * at(j, k);
        norm += sum * sum;
        error += std::pow(sum - (i == j ? 1 : 0), 2);
      }
    }
    norm = std::sqrt(norm);
    error = std::sqrt(error);
  }
  double error = 0;
  double norm = 0;
};

void check_shape(MatrixShape shape, Dtype wire, Orthogonalizer::Gemms gemms) {
  OrthogonalizeOptions plain;
  plain.coefficients = coefficients("polar_express");
  plain.wire = Dtype::kF32;
  std::vector<Values> inputs;
  for (unsigned seed = 0; seed < 3; ++seed) inputs.push_back(random_matrix(shape, seed));
  const Exact exact(orthogonalized(plain, shape, inputs, Place::kEven, gemms)[0], shape);
  for (const bool normuon : {false, true}) {
    OrthogonalizeOptions options = plain;
    options.wire = wire;
    if (normuon) options.normuon = NorMuonOptions{LineAxis::kRows, 0.9, 1e-8};
    const Measured got = measured(options, shape, inputs, gemms);
    // The Gram matrix is rounded to 8 bits of mantissa, or to 11.
    EXPECT_NEAR(std::sqrt(got.errors[0]), exact.error, std::ldexp(exact.norm, -9) + 1e-6) << normuon;
    EXPECT_EQ(got.errors[1], -1) << "was not asked for";
    EXPECT_EQ(got.errors[2], -1) << "sits out";
    if (normuon) continue;
    EXPECT_EQ(got.results[0], orthogonalized(options, shape, inputs, Place::kEven, gemms)[0]) << "changes nothing";
  }
}

TEST_F(GramError, IsTheErrorOfTheFactorBeforeNorMuon) {
  for (const MatrixShape shape : {MatrixShape{128, 128}, {96, 384}, {384, 96}, {33, 257}, {70, 61}, {1, 40}}) {
    for (const Dtype wire : {Dtype::kBf16, Dtype::kF32}) {
      SCOPED_TRACE(std::to_string(shape.rows) + "x" + std::to_string(shape.columns));
      check_shape(shape, wire, Orthogonalizer::Gemms::kBest);
      if (Cublas::available()) check_shape(shape, wire, Orthogonalizer::Gemms::kCublas);
    }
  }
}

}  // namespace
}  // namespace muster::kernels::cuda
