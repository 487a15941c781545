// Orthogonalization of matrices with awkward spectra, against the polar factor of a float64 SVD, standard and Gram form
// side by side. MUSTER_PRINT_SPECTRA=1 prints the table of docs/cpu.md.
#include <cmath>
#include <cstdlib>
#include <dlfcn.h>
#include <functional>
#include <stdexcept>

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "kernel_support.h"

namespace muster::kernels {
namespace {

using reference::Matrix;

constexpr int64_t kShort = 96;

// U and V^T of a thin SVD, and the singular values.
struct Svd {
  Matrix u;
  std::vector<double> s;
  Matrix vt;
};

// LAPACK, loaded rather than linked: linked, its BLAS would take the place of the one under test.
using Dgesdd = int (*)(int layout, char job, int m, int n, double* a, int lda, double* s, double* u, int ldu,
                       double* vt, int ldvt);
Dgesdd load_dgesdd() {
  void* library = dlopen("liblapacke.so.3", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  return reinterpret_cast<Dgesdd>(dlsym(library, "LAPACKE_dgesdd"));
}

Svd svd(Matrix a) {
  static const Dgesdd dgesdd = load_dgesdd();
  constexpr int kRowMajor = 101;
  const int64_t k = std::min(a.rows, a.columns);
  Svd result{{a.rows, k, reference::Vector(static_cast<size_t>(a.rows * k))},
             reference::Vector(static_cast<size_t>(k)),
             {k, a.columns, reference::Vector(static_cast<size_t>(k * a.columns))}};
  const int status = dgesdd(kRowMajor, 'S', static_cast<int>(a.rows), static_cast<int>(a.columns), a.data.data(),
                            static_cast<int>(a.columns), result.s.data(), result.u.data.data(), static_cast<int>(k),
                            result.vt.data.data(), static_cast<int>(a.columns));
  EXPECT_EQ(status, 0);
  return result;
}

struct Spectrum {
  std::string name;
  std::function<double(double)> value;  // of the i-th of n, at i / (n - 1) in [0, 1]
};

std::vector<Spectrum> spectra() {
  const auto log_to = [](double lowest) { return [lowest](double t) { return std::pow(lowest, t); }; };
  const auto rank = [](double share) { return [share](double t) { return t < share ? 1.0 : 0.0; }; };
  const auto tail = [](double lowest) {
    return [lowest](double t) { return t < 0.5 ? 1 - t : 0.5 * std::pow(lowest, 2 * t - 1); };
  };
  const double n = static_cast<double>(kShort - 1);
  std::vector<Spectrum> all{{"linear", [](double t) { return 1 - 0.999 * t; }},
                            {"log to 1e-3", log_to(1e-3)},
                            {"log to 1e-5", log_to(1e-5)},
                            {"log to 1e-7", log_to(1e-7)},
                            {"log to 1e-9", log_to(1e-9)},
                            {"rank 2", rank(1.5 / n)},
                            {"rank 10", rank(9.5 / n)},
                            {"rank n/2", rank(0.5)},
                            {"two large, rest 1e-4", [n](double t) { return t < 1.5 / n ? 1 : 1e-4; }},
                            {"log tail to 1e-4", tail(1e-4)},
                            {"log tail to 1e-10", tail(1e-10)}};
  // Gamma with shape 1/2: many small values and a few large. Its quantiles are squares of a normal's.
  std::vector<double> squares;
  for (const float x : random_values(kShort, 21)) squares.push_back(0.5 * static_cast<double>(x) * x);
  all.push_back({"Gamma(1/2)", [squares, n](double t) { return squares[static_cast<size_t>(t * n + 0.5)]; }});
  return all;
}

Matrix with_spectrum(const Spectrum& spectrum, MatrixShape shape) {
  Svd parts = svd({shape.rows, shape.columns, to_double(random_values(shape.rows * shape.columns, 20))});
  const int64_t k = static_cast<int64_t>(parts.s.size());
  for (int64_t i = 0; i < k; ++i) {
    const double value = spectrum.value(static_cast<double>(i) / static_cast<double>(k - 1));
    for (int64_t j = 0; j < shape.columns; ++j) parts.vt.at(i, j) *= value;
  }
  return multiply(parts.u, parts.vt);
}

// What a step polynomial does to one singular value.
double mapped(const Coefficients& set, double x) {
  for (const Coefficients::Step& s : set.steps) x = s.a * x + s.b * std::pow(x, 3) + s.c * std::pow(x, 5);
  return x;
}

struct Errors {
  double orthogonality = 0;  // the furthest any singular value of O is from 1, among those the steps can reach
  double polar = 0;          // ||O - polar factor|| / ||polar factor||, on those directions
  double arithmetic = 0;     // ||O - exact polynomial of the input|| / sqrt(n): what f32 adds
  double largest = 0;        // singular value of O
};

Errors errors(const Coefficients& set, const Matrix& input, const std::vector<float>& output) {
  const Svd parts = svd(input);
  const Matrix o{input.rows, input.columns, to_double(output)};
  // O in the bases of the input: diagonal if there were no error.
  const Matrix core = multiply(multiply(transpose(parts.u), o), transpose(parts.vt));
  const double norm = reference::frobenius_norm(input);
  Errors result;
  double difference = 0;
  double count = 0;
  double arithmetic = 0;
  for (int64_t i = 0; i < core.rows; ++i) {
    const double start = parts.s[static_cast<size_t>(i)] / (set.safety * norm);
    const bool reached = start > 1e-3;
    if (reached) {
      result.orthogonality = std::max(result.orthogonality, std::abs(core.at(i, i) - 1));
      ++count;
    }
    for (int64_t j = 0; j < core.columns; ++j) {
      const double exact = i == j ? mapped(set, start) : 0;
      arithmetic += std::pow(core.at(i, j) - exact, 2);
      if (reached && parts.s[static_cast<size_t>(j)] / (set.safety * norm) > 1e-3) {
        difference += std::pow(core.at(i, j) - (i == j ? 1 : 0), 2);
      }
    }
  }
  result.polar = std::sqrt(difference / count);
  result.arithmetic = std::sqrt(arithmetic / static_cast<double>(core.rows));
  result.largest = svd(o).s[0];
  return result;
}

TEST(Spectra, BothFormsStayCloseToThePolarFactor) {
  const bool print = std::getenv("MUSTER_PRINT_SPECTRA") != nullptr;
  for (const MatrixShape shape : {MatrixShape{kShort, kShort}, {kShort, 4 * kShort}, {4 * kShort, kShort}}) {
    for (const Spectrum& spectrum : spectra()) {
      const Matrix exact = with_spectrum(spectrum, shape);
      const std::vector<float> input(exact.data.begin(), exact.data.end());
      const Matrix seen{shape.rows, shape.columns, to_double(input)};
      const Coefficients set = coefficients("polar_express");
      const Errors standard = errors(set, seen, orthogonalized(set, shape, input, cpu::Form::kStandard));
      const Errors gram = errors(set, seen, orthogonalized(set, shape, input, cpu::Form::kGram));
      if (print) {
        fmt::print("| {} | {} | {:.3f} / {:.3f} | {:.3f} / {:.3f} | {:.1e} / {:.1e} | {:.3f} / {:.3f} |\n",
                   name_of(shape), spectrum.name, standard.orthogonality, gram.orthogonality, standard.polar,
                   gram.polar, standard.arithmetic, gram.arithmetic, standard.largest, gram.largest);
      }
      for (const Errors& e : {standard, gram}) {
        // The polynomials leave singular values above 1e-3 of the norm within 0.35 of 1 (at 1e-3 exactly: 0.66).
        EXPECT_LT(e.orthogonality, 0.4) << name_of(shape) << " " << spectrum.name;
        EXPECT_LT(e.polar, 0.3) << name_of(shape) << " " << spectrum.name;
        // f32 rounding, 6e-8, times the slope of the polynomials at 0, 990, a few times over.
        EXPECT_LT(e.arithmetic, 5e-4) << name_of(shape) << " " << spectrum.name;
        // The polynomials overshoot to 1.142 by themselves.
        EXPECT_LT(e.largest, 1.15) << name_of(shape) << " " << spectrum.name;
      }
    }
  }
}

}  // namespace
}  // namespace muster::kernels
