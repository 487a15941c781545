#include "run/spectrum.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/text.h"
#include "muster/error.h"

namespace muster::run {
namespace {

struct Named {
  Spectrum spectrum;
  std::string_view name;
};
constexpr Named kNames[] = {{Spectrum::kNormal, "normal"},    {Spectrum::kDecaying, "decaying"},
                            {Spectrum::kSteep, "steep"},      {Spectrum::kGraded, "graded"},
                            {Spectrum::kLowRank, "low_rank"}, {Spectrum::kOutliers, "outliers"},
                            {Spectrum::kEqual, "equal"}};

double sign(uint64_t bits) { return (bits >> 32 & 1) == 0 ? 1 : -1; }

// The inner product of the first numbers of 16 bits in each: exact, so that a sum of `rank` outer products has no more
// than that rank. Of deviation 1.
double inner(uint64_t a, uint64_t b, int rank) {
  int64_t sum = 0;
  for (int r = 0; r < rank; ++r) {
    sum += int64_t{static_cast<int16_t>(a >> 16 * r)} * static_cast<int16_t>(b >> 16 * r);
  }
  return static_cast<double>(sum) * 12 / (65536.0 * 65536.0 * std::sqrt(rank));
}

// 1 / (1 + (d / width)^2) by the distance d of row and column, of which the longer side has more to the unit. Such a
// matrix has sines for singular vectors, near enough, and singular values evenly spaced in their logarithms down to
// 1 / cosh(pi width) of the largest.
constexpr double kDownTo1e3 = 2.42;
constexpr double kDownTo1e6 = 4.62;
double kernel(UncutMatrix shape, int64_t i, int64_t j, double width) {
  const auto side = static_cast<double>(std::min(shape.rows, shape.columns));
  const double row = static_cast<double>(i) * side / static_cast<double>(shape.rows);
  const double column = static_cast<double>(j) * side / static_cast<double>(shape.columns);
  const double distance = (row - column) / width;
  return 1 / (1 + distance * distance);
}

}  // namespace

std::vector<Spectrum> all_spectra() {
  std::vector<Spectrum> all;
  for (const Named& n : kNames) all.push_back(n.spectrum);
  return all;
}

std::string_view name(Spectrum spectrum) { return std::ranges::find(kNames, spectrum, &Named::spectrum)->name; }

std::string spectrum_names() {
  std::vector<std::string_view> names;
  for (const Named& n : kNames) names.push_back(n.name);
  return fmt::format("{}", fmt::join(names, ", "));
}

Spectrum parse_spectrum(std::string_view name) {
  const auto* const found = std::ranges::find(kNames, name, &Named::name);
  if (found != std::end(kNames)) return found->spectrum;
  throw InvalidArgument(fmt::format("{} is none of {}", base::in_quotes(name), spectrum_names()));
}

UncutMatrix uncut_matrix(const Parameter& parameter) {
  const Shape& shape = parameter.matrices.view.empty() ? parameter.shape : parameter.matrices.view;
  if (parameter.matrices.flatten) return {shape[0], element_count(shape) / shape[0]};
  return {shape[shape.size() - 2], shape.back()};
}

Values::Values(const Parameter& parameter, Spectrum spectrum, uint64_t stream, uint64_t row_stream, float size)
    : Values(stream, size) {
  if (spectrum == Spectrum::kNormal || !is_matrix_algorithm(parameter.algorithm)) return;
  spectrum_ = spectrum;
  row_stream_ = row_stream;
  shape_ = uncut_matrix(parameter);
}

float Values::of_matrix(int64_t element) const {
  const int64_t matrix = element / (shape_.rows * shape_.columns);
  const int64_t i = element / shape_.columns % shape_.rows;
  const int64_t j = element % shape_.columns;
  const uint64_t row = hash(row_stream_, matrix * shape_.rows + i);
  const uint64_t column = hash(mix(stream_), matrix * shape_.columns + j);
  const auto noise = [&] { return normal(hash(stream_, element), unit_); };
  switch (spectrum_) {
    case Spectrum::kDecaying:
      return static_cast<float>(size_ * sign(row ^ column) * kernel(shape_, i, j, kDownTo1e3));
    case Spectrum::kSteep:
      return static_cast<float>(size_ * sign(row ^ column) * kernel(shape_, i, j, kDownTo1e6));
    case Spectrum::kGraded:
      return std::ldexp(noise(), -static_cast<int>(20 * i / shape_.rows));
    case Spectrum::kLowRank:
      return static_cast<float>(size_ * inner(row, column, 4));
    case Spectrum::kOutliers:
      return static_cast<float>(size_ * inner(row, column, 2) + 1e-3 * noise());
    case Spectrum::kEqual: {
      // Rows or columns of the reflection I - 2 s s^T / n, s being n signs; only its size differs from step to step.
      const int64_t side = std::max(shape_.rows, shape_.columns);
      const auto s = [&](int64_t k) { return sign(hash(row_stream_, matrix * side + k)); };
      const double reflected = (i == j ? 1 : 0) - 2 * s(i) * s(j) / static_cast<double>(side);
      return static_cast<float>(size_ * reflected * static_cast<double>(1 + mix(stream_) % 4));
    }
    case Spectrum::kNormal:
      break;
  }
  return noise();
}

}  // namespace muster::run
