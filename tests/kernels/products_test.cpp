#include "kernels/cpu/products.h"

#include <cmath>

#include <gtest/gtest.h>

#include "kernel_support.h"

namespace muster::kernels::cpu {
namespace {

// Sums of up to 520 squares of unit normals reach 600; f32 rounds those by 3e-5, some ten times on the way.
constexpr double kTolerance = 4e-4;

TEST(Products, ASymmetricProductIsRightAndSymmetricToTheBit) {
  for (const int64_t n : {1, 5, 64, 130, 255, 257, 520}) {
    const int64_t inner = n + 7;
    const std::vector<float> x = random_values(n * inner, 1);
    const std::vector<float> d = random_values(n * n, 2);
    for (const Transpose transpose : {Transpose::kNo, Transpose::kYes}) {
      const bool tall = transpose == Transpose::kYes;  // x is inner x n
      std::vector<float> symmetric(d);
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < i; ++j) symmetric[j * n + i] = symmetric[i * n + j];
      }
      SymmetricProduct product{.n = n, .inner = inner};
      const int64_t stride = tall ? n : inner;
      product.a = {x.data(), stride, transpose};
      product.b = {x.data(), stride, tall ? Transpose::kNo : Transpose::kYes};
      product.alpha = 0.5f;
      product.beta = -2;
      product.d = symmetric.data();
      product.diagonal = 3;
      const auto at = [&](int64_t i, int64_t k) { return static_cast<double>(tall ? x[k * n + i] : x[i * inner + k]); };
      for (const int strips : {1, 3, 8}) {
        std::vector<float> c(static_cast<size_t>(n * n), std::nanf(""));
        product.c = c.data();
        for (int64_t t = 0; t < tasks(product, strips); ++t) run(product, strips, t);
        for (int64_t i = 0; i < n; i += 1 + n / 40) {
          for (int64_t j = 0; j < n; ++j) {
            double expected = -2.0 * symmetric[i * n + j] + (i == j ? 3 : 0);
            for (int64_t k = 0; k < inner; ++k) expected += 0.5 * at(i, k) * at(j, k);
            ASSERT_NEAR(c[i * n + j], expected, kTolerance) << n << " " << i << " " << j;
            ASSERT_EQ(c[i * n + j], c[j * n + i]);
          }
        }
      }
    }
  }
}

TEST(Products, StripsCoverTheWholeProduct) {
  for (const MatrixShape shape : {MatrixShape{1, 1}, {3, 770}, {257, 5}, {520, 769}, {256, 768}}) {
    const int64_t inner = 9;
    const std::vector<float> a = random_values(shape.rows * inner, 3);
    const std::vector<float> b = random_values(inner * shape.columns, 4);
    for (const int strips : {1, 3, 8}) {
      std::vector<float> c(static_cast<size_t>(shape.rows * shape.columns), std::nanf(""));
      const Product product{shape.rows, shape.columns, inner, {a.data(), inner}, {b.data(), shape.columns}, c.data()};
      for (int64_t t = 0; t < tasks(product, strips); ++t) run(product, strips, t);
      for (int64_t i = 0; i < shape.rows; ++i) {
        for (int64_t j = 0; j < shape.columns; ++j) {
          double expected = 0;
          for (int64_t k = 0; k < inner; ++k) {
            expected += static_cast<double>(a[i * inner + k]) * b[k * shape.columns + j];
          }
          ASSERT_NEAR(c[i * shape.columns + j], expected, kTolerance) << i << " " << j;
        }
      }
    }
  }
}

TEST(Products, AddsToWhatIsThere) {
  constexpr int64_t kRows = 100;
  constexpr int64_t kColumns = 210;
  constexpr int64_t kInner = 9;
  const std::vector<float> a = random_values(kInner * kRows, 3);
  const std::vector<float> b = random_values(kColumns * kInner, 4);
  const std::vector<float> before = random_values(kRows * kColumns, 5);
  std::vector<float> c = before;
  const Operand left{a.data(), kRows, Transpose::kYes};
  const Operand right{b.data(), kInner, Transpose::kYes};
  const Product product{kRows, kColumns, kInner, left, right, c.data(), Into::kAdd};
  for (int64_t t = 0; t < tasks(product, 2); ++t) run(product, 2, t);
  for (int64_t i = 0; i < kRows; ++i) {
    for (int64_t j = 0; j < kColumns; ++j) {
      double expected = before[i * kColumns + j];
      for (int64_t k = 0; k < kInner; ++k) expected += static_cast<double>(a[k * kRows + i]) * b[j * kInner + k];
      ASSERT_NEAR(c[i * kColumns + j], expected, kTolerance) << i << " " << j;
    }
  }
}

TEST(Products, AGramMatrixIsSummedInDouble) {
  for (const int64_t n : {1, 31, 32, 33, 96, 130}) {
    for (const int64_t inner : {1, 255, 256, 257, 700}) {
      const std::vector<float> x = random_values(n * inner, 9);
      for (const Transpose transpose : {Transpose::kNo, Transpose::kYes}) {
        const bool turned = transpose == Transpose::kYes;
        std::vector<double> c(static_cast<size_t>(n * n), std::nan(""));
        const DoubleGram gram{n, inner, {x.data(), turned ? n : inner, transpose}, c.data()};
        for (int64_t t = 0; t < tasks(gram); ++t) run(gram, t);
        const auto at = [&](int64_t i, int64_t k) -> double { return turned ? x[k * n + i] : x[i * inner + k]; };
        for (int64_t i = 0; i < n; i += 1 + n / 20) {
          for (int64_t j = i; j < n; ++j) {
            double expected = 0;
            for (int64_t k = 0; k < inner; ++k) expected += at(i, k) * at(j, k);
            // 700 terms of about 1, rounded to 1e-16 each
            ASSERT_NEAR(c[i * n + j], expected, 1e-11) << n << "x" << inner << " " << i << " " << j;
          }
        }
      }
    }
  }
}

// Layouts would give different weights if this failed: how a product is cut depends on the batch and the strips. The
// inner sizes are below, at and above what BLIS sums at once.
TEST(Products, HowAProductIsCutDoesNotChangeItsBits) {
  for (const MatrixShape shape : {MatrixShape{97, 97}, {193, 200}, {300, 101}, {391, 577}, {768, 768}}) {
    for (const int64_t inner : {1, 7, 255, 256, 257, 384, 700, 1025}) {
      const std::vector<float> a = random_values(shape.rows * inner, 5);
      const std::vector<float> b = random_values(inner * shape.columns, 6);
      const std::vector<float> d = random_values(shape.rows * shape.rows, 7);
      const auto product = [&](int strips) {
        std::vector<float> c(static_cast<size_t>(shape.rows * shape.columns));
        const Product p{shape.rows, shape.columns, inner, {a.data(), inner}, {b.data(), shape.columns}, c.data()};
        for (int64_t t = 0; t < tasks(p, strips); ++t) run(p, strips, t);
        return c;
      };
      const auto symmetric = [&](int strips, Transpose transpose) {
        const bool tall = transpose == Transpose::kYes;
        std::vector<float> c(static_cast<size_t>(shape.rows * shape.rows));
        SymmetricProduct p{.n = shape.rows, .inner = inner};
        const int64_t stride = tall ? shape.rows : inner;
        p.a = {a.data(), stride, transpose};
        p.b = {a.data(), stride, tall ? Transpose::kNo : Transpose::kYes};
        p.alpha = 0.3f;
        p.beta = -1.7f;
        p.d = d.data();
        p.diagonal = 0.9f;
        p.c = c.data();
        for (int64_t t = 0; t < tasks(p, strips); ++t) run(p, strips, t);
        return c;
      };
      const auto added = [&](int strips, Transpose transpose) {
        const bool turned = transpose == Transpose::kYes;
        std::vector<float> c = random_values(shape.rows * shape.columns, 8);
        Product p{shape.rows, shape.columns, inner};
        p.a = {a.data(), turned ? shape.rows : inner, transpose};
        p.b = {b.data(), turned ? inner : shape.columns, transpose};
        p.c = c.data();
        p.into = Into::kAdd;
        for (int64_t t = 0; t < tasks(p, strips); ++t) run(p, strips, t);
        return c;
      };
      const std::vector<float> whole = product(1);
      const std::vector<float> sum = added(1, Transpose::kNo);
      const std::vector<float> turned_sum = added(1, Transpose::kYes);
      const std::vector<float> wide = symmetric(1, Transpose::kNo);
      const std::vector<float> tall = symmetric(1, Transpose::kYes);
      for (const int strips : {2, 3, 5, 8, 64}) {
        ASSERT_EQ(product(strips), whole) << shape.rows << "x" << shape.columns << "x" << inner << " " << strips;
        ASSERT_EQ(added(strips, Transpose::kNo), sum) << shape.rows << "x" << inner << " " << strips;
        ASSERT_EQ(added(strips, Transpose::kYes), turned_sum) << shape.rows << "x" << inner << " " << strips;
        ASSERT_EQ(symmetric(strips, Transpose::kNo), wide) << shape.rows << "x" << inner << " " << strips;
        ASSERT_EQ(symmetric(strips, Transpose::kYes), tall) << shape.rows << "x" << inner << " " << strips;
      }
    }
  }
}

}  // namespace
}  // namespace muster::kernels::cpu
