#include "run/spectrum.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"
#include "run/workload.h"
#include "support/problems.h"

namespace muster::run {
namespace {

// Singular values of a row-major matrix that is not tall, largest first, by rotating pairs of rows until all are
// orthogonal (one-sided Jacobi): small ones come out as exactly as large ones.
std::vector<double> singular_values(std::vector<double> a, int64_t rows) {
  const int64_t columns = std::ssize(a) / rows;
  const auto row = [&](int64_t i) { return a.begin() + i * columns; };
  const auto dot = [&](int64_t i, int64_t j) {
    double sum = 0;
    for (int64_t k = 0; k < columns; ++k) sum += row(i)[k] * row(j)[k];
    return sum;
  };
  for (int sweep = 0; sweep < 30; ++sweep) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = i + 1; j < rows; ++j) {
        const double own = dot(i, i);
        const double other = dot(j, j);
        const double mixed = dot(i, j);
        if (std::abs(mixed) <= 1e-13 * std::sqrt(own * other)) continue;
        const double zeta = (other - own) / (2 * mixed);
        const double t = std::copysign(1 / (std::abs(zeta) + std::sqrt(1 + zeta * zeta)), zeta);
        const double c = 1 / std::sqrt(1 + t * t);
        for (int64_t k = 0; k < columns; ++k) {
          const double x = row(i)[k];
          const double y = row(j)[k];
          row(i)[k] = c * (x - t * y);
          row(j)[k] = c * (t * x + y);
        }
      }
    }
  }
  std::vector<double> values;
  for (int64_t i = 0; i < rows; ++i) values.push_back(std::sqrt(dot(i, i)));
  std::ranges::sort(values, std::greater<>());
  return values;
}

// Of the largest, singular values of what momentum is after three steps; of the second matrix of three.
std::vector<double> shares(Spectrum spectrum, int64_t rows, int64_t columns) {
  const Problem problem = test::one_parameter({3, rows, columns}, 1);
  const Workload workload(problem, {.spectrum = spectrum});
  const int64_t size = rows * columns;
  std::vector<double> momentum(static_cast<size_t>(size));
  for (int64_t step = 0; step < 3; ++step) {
    const std::vector<float> gradient = workload.gradients(0, {size, 2 * size}, step);
    for (int64_t e = 0; e < size; ++e) {
      const int64_t flipped = e % columns * rows + e / columns;
      double& m = momentum[rows > columns ? flipped : e];
      m = 0.9 * m + gradient[e];
    }
  }
  std::vector<double> values = singular_values(momentum, std::min(rows, columns));
  const double largest = values.front();
  for (double& v : values) v /= largest;
  return values;
}

// Square, wide and tall.
void for_shapes(Spectrum spectrum, const std::function<void(const std::vector<double>&)>& check) {
  for (const auto& [rows, columns] : {std::pair(24, 24), {20, 50}, {50, 20}}) {
    SCOPED_TRACE(testing::Message() << name(spectrum) << " " << rows << " x " << columns);
    check(shares(spectrum, rows, columns));
  }
}

TEST(Spectrum, FallsEvenlyInItsLogarithms) {
  for_shapes(Spectrum::kDecaying, [](const std::vector<double>& s) {
    EXPECT_GT(s[s.size() / 2], 3e-3);
    EXPECT_LT(s[s.size() / 2], 1e-1);
    EXPECT_GT(s.back(), 1e-5);  // the columns' signs of three steps add up to a little for some
    EXPECT_LT(s.back(), 2e-3);
  });
  for_shapes(Spectrum::kSteep, [](const std::vector<double>& s) {
    EXPECT_GT(s[s.size() / 2], 1e-4);
    EXPECT_LT(s[s.size() / 2], 1e-2);
    EXPECT_GT(s.back(), 1e-9);
    EXPECT_LT(s.back(), 5e-6);
  });
}

TEST(Spectrum, HasRowsThatFall) {
  const Problem problem = test::one_parameter({40, 30}, 1);
  const std::vector<float> graded = Workload(problem, {.spectrum = Spectrum::kGraded}).gradients(0, {0, 1200}, 0);
  const std::vector<float> normal = Workload(problem).gradients(0, {0, 1200}, 0);
  for (int i = 0; i < 1200; ++i) ASSERT_EQ(graded[i], std::ldexp(normal[i], -(i / 60))) << "element " << i;
}

TEST(Spectrum, IsOfRankFour) {
  for_shapes(Spectrum::kLowRank, [](const std::vector<double>& s) {
    EXPECT_GT(s[3], 0.1);
    EXPECT_LT(s[4], 1e-6);  // f32
  });
}

TEST(Spectrum, HasTwoOutliers) {
  for_shapes(Spectrum::kOutliers, [](const std::vector<double>& s) {
    EXPECT_GT(s[1], 0.1);
    EXPECT_LT(s[2], 2e-3);
    EXPECT_GT(s.back(), 1e-6);
  });
}

TEST(Spectrum, IsEqual) {
  for_shapes(Spectrum::kEqual, [](const std::vector<double>& s) { EXPECT_GT(s.back(), 1 - 1e-5); });
}

TEST(Spectrum, ReadsTheMatricesOfAParameter) {
  Parameter parameter = test::one_parameter({6, 4, 5}, 1).parameters[0];
  EXPECT_EQ(uncut_matrix(parameter).rows, 4);
  EXPECT_EQ(uncut_matrix(parameter).columns, 5);
  parameter.matrices.view = {12, 10};
  EXPECT_EQ(uncut_matrix(parameter).rows, 12);
  parameter.matrices = {.view = {}, .flatten = true, .rows = {}, .columns = {}};
  EXPECT_EQ(uncut_matrix(parameter).rows, 6);
  EXPECT_EQ(uncut_matrix(parameter).columns, 20);
}

TEST(Spectrum, LeavesElementwiseParametersAlone) {
  Problem problem = test::one_parameter({12, 10}, 1);
  for (const Algorithm algorithm : {Algorithm::kAdamW, Algorithm::kLion}) {
    problem.parameters[0].algorithm = algorithm;
    for (const Spectrum spectrum : all_spectra()) {
      EXPECT_EQ(Workload(problem, {.spectrum = spectrum}).gradients(0, {0, 120}, 1),
                Workload(problem).gradients(0, {0, 120}, 1));
    }
  }
}

TEST(Spectrum, HasAName) {
  EXPECT_EQ(all_spectra().size(), 7U);
  for (const Spectrum spectrum : all_spectra()) EXPECT_EQ(parse_spectrum(name(spectrum)), spectrum);
  EXPECT_THAT([] { parse_spectrum("flat"); },
              testing::ThrowsMessage<InvalidArgument>(testing::StartsWith("'flat' is none of normal, decaying")));
}

}  // namespace
}  // namespace muster::run
