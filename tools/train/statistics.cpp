#include "train/statistics.h"

#include <cmath>
#include <limits>

namespace muster::train {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// The continued fraction of the incomplete beta function (DLMF 8.17.22), by Lentz's method. Converges fast for
// x < (a + 1) / (a + b + 2).
double beta_fraction(double a, double b, double x) {
  constexpr double kTiny = 1e-300;
  constexpr double kEnough = 1e-16;
  constexpr int kMost = 10'000;
  const auto away_from_zero = [](double v) { return std::abs(v) < kTiny ? kTiny : v; };
  double d = 1 / away_from_zero(1 - (a + b) * x / (a + 1));
  double c = 1;
  double value = d;
  for (int m = 1; m < kMost; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    double change = 1;
    for (const double term : {even, odd}) {
      d = 1 / away_from_zero(1 + term * d);
      c = away_from_zero(1 + term / c);
      change = c * d;
      value *= change;
    }
    if (std::abs(change - 1) < kEnough) break;
  }
  return value;
}

// The regularized incomplete beta function I_x(a, b).
double incomplete_beta(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  if (x > (a + 1) / (a + b + 2)) return 1 - incomplete_beta(b, a, 1 - x);
  const double front =
      std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) + a * std::log(x) + b * std::log1p(-x));
  return front * beta_fraction(a, b, x) / a;
}

}  // namespace

double mean(std::span<const double> values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? kNone : sum / static_cast<double>(values.size());
}

double standard_deviation(std::span<const double> values) {
  if (values.size() < 2) return kNone;
  const double middle = mean(values);
  double sum = 0;
  for (const double value : values) sum += (value - middle) * (value - middle);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

double student_t_cdf(double t, double degrees) {
  const double tail = incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t)) / 2;
  return t < 0 ? tail : 1 - tail;
}

double p_below(std::span<const double> values, double target) {
  if (values.size() < 2) return kNone;
  const double count = static_cast<double>(values.size());
  const double distance = mean(values) - target;
  const double error = standard_deviation(values) / std::sqrt(count);
  if (error == 0) return distance == 0 ? kNone : distance < 0 ? 0 : 1;
  return student_t_cdf(distance / error, count - 1);
}

}  // namespace muster::train
