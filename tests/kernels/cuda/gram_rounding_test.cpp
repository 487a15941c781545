// A model of the Gram form's roundings, which needs no device. Long matrices whose largest singular value lies in a few
// rows once came out with singular values of 1000: the rounding error of the Gram matrix in fp16 grows with the square
// of the slope of every step that reads it, and three steps are too many.
#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "kernels/cuda/newton_schulz/newton_schulz_form.h"
#include "orthogonalizing.h"
#include "spectra.h"

namespace muster::kernels::cuda {
namespace {

using reference::Matrix;

double to_half(double value) {
  if (value == 0) return 0;
  const int unit = std::max(std::ilogb(value), -14) - 10;
  return std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
}

// alpha A B + beta C + gamma I in fp16; a symmetric one is computed on and below the diagonal.
struct Sum {
  double alpha = 1;
  double beta = 0;
  const Matrix* c = nullptr;
  double gamma = 0;
  bool symmetric = true;
};

Matrix product(const Matrix& a, const Matrix& b, const Sum& sum = {}) {
  Matrix d = reference::multiply(a, b);
  for (int64_t i = 0; i < d.rows; ++i) {
    for (int64_t j = 0; j < d.columns; ++j) {
      double& value = d.at(i, j);
      value = sum.symmetric && j > i
                  ? 0
                  : to_half(sum.alpha * value + (sum.c ? sum.beta * sum.c->at(i, j) : 0) + (i == j ? sum.gamma : 0));
    }
  }
  for (int64_t i = 0; sum.symmetric && i < d.rows; ++i) {
    for (int64_t j = i + 1; j < d.columns; ++j) d.at(i, j) = d.at(j, i);
  }
  return d;
}

using Anew = std::function<bool(size_t step)>;

// The same as Steps::gram_form of a wide matrix.
Matrix gram_form(const Coefficients& set, Matrix x, const Anew& anew) {
  const double norm = reference::frobenius_norm(x);
  const double power = std::exp2(8 - std::ilogb(norm));
  double scale = 1 / (set.safety * norm * power);
  for (double& value : x.data) value = to_half(value * power);
  Matrix r = product(x, reference::transpose(x), {.alpha = scale * scale});
  double t = 1;  // what r is to be multiplied with
  if (set.rescale == Coefficients::Rescale::kGram) t /= set.safety * set.safety * reference::frobenius_norm(r);
  scale *= std::sqrt(t);
  Matrix q;
  for (size_t s = 0; s < set.steps.size(); ++s) {
    const auto [a, b, c] = set.steps[s];
    if (anew(s)) {
      x = product(q, x, {.alpha = scale, .symmetric = false});
      scale = 1;
      r = product(x, reference::transpose(x));
      t = 1;
    }
    const Matrix z = product(r, r, {.alpha = c * t * t, .beta = b * t, .c = &r});
    q = s == 0 || anew(s) ? product(r, r, {.alpha = c * t * t, .beta = b * t, .c = &r, .gamma = a})
                          : product(q, z, {.beta = a, .c = &q});
    if (s + 1 == set.steps.size() || anew(s + 1)) continue;
    const Matrix rz = product(r, z, {.alpha = t, .beta = a * t, .c = &r});
    r = product(z, rz, {.beta = a, .c = &rz});
    t = 1;
  }
  return product(q, x, {.alpha = scale, .symmetric = false});
}

Matrix orthogonal(int64_t rows, int64_t columns, std::mt19937& random) {
  Matrix m{rows, columns, reference::Vector(static_cast<size_t>(rows * columns))};
  std::normal_distribution<double> normal;
  for (double& value : m.data) value = normal(random);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t k = 0; k <= i; ++k) {  // at last itself
      double dot = 0;
      for (int64_t j = 0; j < columns; ++j) dot += m.at(i, j) * m.at(k, j);
      for (int64_t j = 0; j < columns; ++j) k < i ? m.at(i, j) -= dot * m.at(k, j) : m.at(i, j) /= std::sqrt(dot);
    }
  }
  return m;
}

// In bf16: as many singular values as rows, by the number of one and how many there are.
Matrix with_values(int64_t rows, const std::function<double(int64_t)>& value, std::mt19937& random) {
  Matrix left = orthogonal(rows, rows, random);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < rows; ++j) left.at(i, j) *= value(j);
  }
  Matrix x = reference::multiply(left, orthogonal(rows, 4 * rows, random));
  for (double& v : x.data) v = static_cast<double>(to_bf16(static_cast<float>(v)));
  return x;
}

// The largest singular value of anything. The cap is left out here, which makes it harder for the sets that have
// one.
double worst(const Coefficients& set, const Anew& anew) {
  double most = 0;
  for (const int64_t rows : {4, 8, 16, 32}) {
    for (unsigned seed = 0; seed < 20; ++seed) {
      std::mt19937 random(seed);
      const auto add = [&](const std::function<double(int64_t)>& value) {
        most = std::max(most, spectral_norm(gram_form(set, with_values(rows, value, random), anew)));
      };
      for (const int decades : {2, 3, 4, 5, 6, 9}) {
        add([&](int64_t i) {
          return std::pow(10.0, -static_cast<double>(decades * i) / static_cast<double>(rows - 1));
        });
      }
      std::normal_distribution<double> normal;
      std::vector<double> values(static_cast<size_t>(rows));
      for (double& value : values) value = std::exp(3 * normal(random));
      add([&](int64_t i) { return values[static_cast<size_t>(i)]; });
    }
  }
  return most;
}

TEST(GramRounding, LeavesSingularValuesBoundedForEverySetThatTakesTheForm) {
  for (const std::string_view name : coefficient_names()) {
    const Coefficients set = coefficients(name);
    if (form_of({96, 384}, set) != Form::kGram) continue;
    EXPECT_LT(worst(set, [&](size_t step) { return restarts(set, step); }), 1.5) << name;
  }
}

TEST(GramRounding, DoesSoInAnyNumberOfSteps) {
  Coefficients set = coefficients("polar_express");
  for (int more = 0; more < 4; ++more) {
    set.steps.push_back(set.steps.back());
    ASSERT_EQ(form_of({96, 384}, set), Form::kGram);
    EXPECT_LT(worst(set, [&](size_t step) { return restarts(set, step); }), 1.5) << set.steps.size();
  }
}

// A sketch alone is no reason to go without a restart: the first three steps of polar_express are too steep.
TEST(GramRounding, OnlyStepsNoSteeperThanThoseOfCapped3GoWithoutARestart) {
  Coefficients set = coefficients("capped3");
  EXPECT_FALSE(restarts(set, 2));
  set.steps = coefficients("polar_express").steps;
  set.steps.resize(3);
  EXPECT_TRUE(restarts(set, 2));
  EXPECT_TRUE(restarts(coefficients("capped4"), 2));
}

TEST(GramRounding, RunsAwayIfThreeStepsGoByIt) {
  EXPECT_GT(worst(coefficients("polar_express_safe"), [](size_t step) { return step == 3; }), 10);
}

}  // namespace
}  // namespace muster::kernels::cuda
