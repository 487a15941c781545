// Orthogonalization of matrices with awkward spectra, against the polar factor of a float64 SVD: standard and Gram form
// side by side, and sets that cap the largest singular values. MUSTER_PRINT_SPECTRA=1 prints the tables of
// docs/lab/cpu-kernels-2026-11.md.
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

// The short side of matrices whose singular values are capped: more than any sketch has columns.
constexpr int64_t kCapped = 192;

enum class Top : uint8_t {
  kDecaying,  // what is below the sketch is far below the top: five steps do not reach it, capped ones get nearer
  kFound,     // fewer equal large values than the sketch has columns: all that is left is within reach
  kTooMany,   // more of them: the rest is as far below as it was
};
struct TopHeavy {
  Spectrum spectrum;  // for t = i / (kCapped - 1)
  Top top;
};

std::vector<TopHeavy> top_heavy_spectra() {
  const double n = static_cast<double>(kCapped - 1);
  const auto equal = [n](int large, double rest) {
    const double end = (large - 0.5) / n;
    return [end, rest](double t) { return t < end ? 1 : rest * (1.5 - t); };
  };
  return {// Like the momentum of a GPT: a stable rank of 3, a median of 1/1000, a smallest of 1/8000.
          {{"momentum", [n](double t) { return std::pow(1 + t * n / 14, -3.35); }}, Top::kDecaying},
          {{"log to 1e-3", [](double t) { return std::pow(1e-3, t); }}, Top::kDecaying},
          {{"log to 1e-6", [](double t) { return std::pow(1e-6, t); }}, Top::kDecaying},
          {{"rank 1", equal(1, 0)}, Top::kFound},
          {{"rank 10", equal(10, 0)}, Top::kFound},
          {{"24 large", equal(24, 0.01)}, Top::kFound},
          {{"32 large", equal(32, 0.01)}, Top::kFound},
          {{"33 large", equal(33, 0.01)}, Top::kFound},
          {{"64 large", equal(64, 0.01)}, Top::kFound},
          {{"128 large", equal(128, 0.01)}, Top::kTooMany}};
}

// How far O is from the polar factor, on the directions in which the input is more than rounding.
struct Closeness {
  double gap = 0;      // 1 - cos(O, polar factor)
  double rms = 0;      // of sigma - 1
  double largest = 0;  // singular value of O, on all directions
};

Closeness closeness(const Svd& input, const std::vector<float>& output) {
  const Matrix o{input.u.rows, input.vt.columns, to_double(output)};
  const Matrix core = multiply(multiply(transpose(input.u), o), transpose(input.vt));
  int64_t k = 0;
  while (k < core.rows && input.s[static_cast<size_t>(k)] > 1e-6 * input.s[0] * 1.001) ++k;
  Matrix reached{k, k, {}};
  double trace = 0;
  for (int64_t i = 0; i < k; ++i) {
    trace += core.at(i, i);
    for (int64_t j = 0; j < k; ++j) reached.data.push_back(core.at(i, j));
  }
  Closeness result;
  const double count = static_cast<double>(k);
  result.gap = 1 - trace / (reference::frobenius_norm(reached) * std::sqrt(count));
  for (const double s : svd(reached).s) result.rms += (s - 1) * (s - 1) / count;
  result.rms = std::sqrt(result.rms);
  result.largest = svd(o).s[0];
  return result;
}

TEST(Spectra, CappedSetsComeCloserToThePolarFactor) {
  const bool print = std::getenv("MUSTER_PRINT_SPECTRA") != nullptr;
  for (const MatrixShape shape : {MatrixShape{kCapped, kCapped}, {kCapped, 2 * kCapped}, {2 * kCapped, kCapped}}) {
    for (const auto& [spectrum, top] : top_heavy_spectra()) {
      const Matrix exact = with_spectrum(spectrum, shape);
      const std::vector<float> input(exact.data.begin(), exact.data.end());
      const Svd parts = svd({shape.rows, shape.columns, to_double(input)});
      const auto measured = [&](std::string_view name) {
        return closeness(parts, orthogonalized(coefficients(name), shape, input, cpu::form_of(shape)));
      };
      const Closeness five = measured("polar_express");
      if (print)
        fmt::print("| {} | {} | {:.3f}, {:.4f}, {:.3f}", name_of(shape), spectrum.name, five.rms, five.gap,
                   five.largest);
      for (const std::string_view name : {"capped3", "capped4"}) {
        const Closeness c = measured(name);
        if (print) fmt::print(" | {:.3f}, {:.4f}, {:.3f}", c.rms, c.gap, c.largest);
        const std::string what = fmt::format("{} {} {}", name_of(shape), spectrum.name, name);
        // The polynomials overshoot to 1.16 by themselves. Rounding in a direction with nothing in it must not grow to
        // more, either.
        EXPECT_LT(c.largest, 1.2) << what;
        if (top == Top::kDecaying) {
          // At worst 0.85 and 0.68 times those of five steps: log to 1e-6, of which half is out of reach of all.
          EXPECT_LT(c.rms, 0.87 * five.rms) << what;
          EXPECT_LT(c.gap, 0.7 * five.gap) << what;
        } else if (top == Top::kFound) {
          // Everything is within the ripple of the polynomials, 0.16, whose 1 - cos is at most half its square.
          EXPECT_LT(c.rms, 0.17) << what;
          EXPECT_LT(c.gap, 0.0145) << what;
        }
      }
      if (print) fmt::print(" |\n");
    }
  }
}

// In float64, so that only the algorithm counts: the polar factor of what is capped, and how far the largest values
// went.
TEST(Spectra, TheCapLeavesThePolarFactor) {
  for (const MatrixShape shape : {MatrixShape{kCapped, kCapped}, {kCapped, 2 * kCapped}, {2 * kCapped, kCapped}}) {
    for (const auto& [spectrum, top] : top_heavy_spectra()) {
      if (spectrum.value(1) < 1e-5) continue;  // no polar factor, or one that rounding decides
      const Matrix x = with_spectrum(spectrum, shape);
      const Svd parts = svd(x);
      for (const int64_t sketch : {32, 64, 96}) {
        const std::string what = fmt::format("{} {} {}", name_of(shape), spectrum.name, sketch);
        const Matrix core = multiply(multiply(transpose(parts.u), reference::capped(x, sketch)), transpose(parts.vt));
        const Svd of_core = svd(core);
        const Matrix polar = multiply(of_core.u, of_core.vt);
        double gap = 1;
        for (int64_t i = 0; i < polar.rows; ++i) gap -= polar.at(i, i) / static_cast<double>(polar.rows);
        // At worst 3.2e-3, an angle of 0.08: at its edge, the sketch spans no singular vectors.
        EXPECT_LT(gap, 5e-3) << what;
        if (top == Top::kDecaying) {
          EXPECT_LT(of_core.s[0], parts.s[static_cast<size_t>(sketch / 2)]) << what;
        } else if (top == Top::kTooMany) {
          EXPECT_GT(of_core.s[0], 0.9) << what;
        }
      }
    }
  }
}

}  // namespace
}  // namespace muster::kernels
