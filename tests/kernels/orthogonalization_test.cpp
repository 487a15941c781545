#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "kernel_support.h"
#include "muster/error.h"
#include "muster/orthogonalize.h"
#include "support/reference_options.h"

namespace muster {
namespace {

using kernels::from_bf16;
using kernels::MatrixShape;
using kernels::random_values;
using kernels::to_bf16;
using Values = std::vector<float>;

Orthogonalization call_for(Values& values, MatrixShape shape, int64_t count = 1) {
  return {.matrices = values.data(), .count = count, .rows = shape.rows, .columns = shape.columns};
}

const std::vector<MatrixShape> kShapes{{1, 1}, {1, 12}, {12, 1}, {6, 12}, {64, 65}, {130, 90}, {20, 300}, {129, 129}};

// As in orthogonalize_test.cpp: an error of 6e-8, made in f32, grows with the slope of the polynomials at 0, and with a
// single singular value cans alone takes it far.
TEST(PublicOrthogonalize, AgreesWithTheReferenceForEveryShapeAndSet) {
  for (const MatrixShape shape : kShapes) {
    for (const std::string_view name : coefficient_names()) {
      const Values input = random_values(shape.rows * shape.columns, 3);
      Values values = input;
      Orthogonalization call = call_for(values, shape);
      call.coefficients = coefficients(name);
      orthogonalize(call);
      const reference::Matrix expected = reference::newton_schulz(
          {shape.rows, shape.columns, kernels::to_double(input)}, test::reference_options(call.coefficients));
      double sum = 0;
      for (size_t i = 0; i < values.size(); ++i) sum += std::pow(double{values[i]} - expected.data[i], 2);
      const auto shorter = static_cast<double>(std::min(shape.rows, shape.columns));
      EXPECT_LT(std::sqrt(sum / shorter), shorter == 1 ? 1e-2 : 2e-4) << shape.rows << "x" << shape.columns << name;
    }
  }
}

TEST(PublicOrthogonalize, AMatrixHasTheSameBitsAloneInABatchAndOnAnyNumberOfThreads) {
  for (const MatrixShape shape : {MatrixShape{6, 12}, MatrixShape{130, 90}, MatrixShape{200, 200}}) {
    constexpr int64_t kCount = 5;
    const auto size = shape.rows * shape.columns;
    const Values input = random_values(kCount * size, 4);
    for (const int threads : {1, 2, 3, 8}) {
      Values together = input;
      Orthogonalization call = call_for(together, shape, kCount);
      call.threads = threads;
      orthogonalize(call);
      for (int64_t m = 0; m < kCount; ++m) {
        Values alone(input.begin() + m * size, input.begin() + (m + 1) * size);
        orthogonalize(call_for(alone, shape));
        EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + m * size)) << threads << " threads";
      }
    }
  }
}

TEST(PublicOrthogonalize, Bf16IsTheRoundingOfF32) {
  constexpr MatrixShape kShape{40, 24};
  std::vector<uint16_t> halves = to_bf16(random_values(kShape.rows * kShape.columns, 5));
  Values values = from_bf16(halves);
  orthogonalize(call_for(values, kShape));
  Orthogonalization call = call_for(values, kShape);
  call.matrices = halves.data();
  call.dtype = Dtype::kBf16;
  orthogonalize(call);
  EXPECT_EQ(halves, to_bf16(values));
}

TEST(PublicOrthogonalize, NaNAndInfinityStayInTheirMatrixAndZeroStaysZero) {
  constexpr MatrixShape kShape{4, 6};
  constexpr size_t kSize = 24;
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Values values = random_values(3 * kSize, 6);
    values[7] = bad;
    std::fill(values.begin() + kSize, values.begin() + 2 * kSize, 0.0F);
    orthogonalize(call_for(values, kShape, 3));
    const auto count = [&](size_t matrix, auto is) {
      return std::count_if(values.begin() + static_cast<int64_t>(matrix * kSize),
                           values.begin() + static_cast<int64_t>((matrix + 1) * kSize), is);
    };
    EXPECT_EQ(count(0, [](float x) { return std::isnan(x); }), 24) << bad;
    EXPECT_EQ(count(1, [](float x) { return x == 0; }), 24);
    EXPECT_EQ(count(2, [](float x) { return std::isfinite(x) && x != 0; }), 24);
  }
}

TEST(PublicOrthogonalize, NothingToDoNeedsNoMemory) {
  for (const auto& [count, rows, columns] : {std::tuple{0, 3, 4}, {2, 0, 4}, {2, 3, 0}, {1, 0, 0}}) {
    const Orthogonalization call{.count = count, .rows = rows, .columns = columns};
    orthogonalize(call);
    EXPECT_EQ(orthogonalize_workspace(call), 0);
  }
}

TEST(PublicOrthogonalize, RefusesWhatItCannotDoByNameAndValue) {
  const auto text = [](auto change) -> std::string {
    Values values(12);
    Orthogonalization call = call_for(values, {3, 4});
    change(call);
    try {
      orthogonalize(call);
    } catch (const InvalidArgument& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(text([](auto& c) { c.matrices = nullptr; }), "orthogonalize: matrices null: expected 1 matrices of 3x4");
  EXPECT_EQ(text([](auto& c) { c.rows = -1; }), "orthogonalize: rows -1: expected at least 0");
  EXPECT_EQ(text([](auto& c) { c.count = -2; }), "orthogonalize: count -2: expected at least 0");
  EXPECT_EQ(text([](auto& c) { c.threads = 0; }), "orthogonalize: threads 0: expected at least 1");
  EXPECT_EQ(text([](auto& c) { c.dtype = Dtype::kF16; }), "orthogonalize: dtype f16: expected f32 or bf16");
  EXPECT_EQ(text([](auto& c) { c.coefficients.steps.clear(); }),
            "coefficients \"polar_express\": 0 steps, expected 1 to 64");
  EXPECT_EQ(text([](auto& c) { c.rows = c.columns = int64_t{1} << 40; }),
            "orthogonalize: 1 matrices of 1099511627776x1099511627776: too many elements");
}

}  // namespace
}  // namespace muster
