#include "reference/reference.h"

#include <algorithm>
#include <cmath>

namespace muster::reference {
namespace {

// To `bits` significant bits, ties to even. Fine for normal numbers, and all a reference is given are.
double round_to_bits(double value, int bits) {
  if (value == 0 || !std::isfinite(value)) return value;
  int exponent = 0;
  const double mantissa = std::frexp(value, &exponent);  // [0.5, 1)
  return std::ldexp(std::nearbyint(std::ldexp(mantissa, bits)), exponent - bits);
}

double sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : 0; }

void decay_and_step(double lr, double weight_decay, Decay decay, double step, double& weight) {
  const bool decays = decay == Decay::kPlain || sign(step) * sign(weight) >= 0;
  if (decays) weight -= lr * weight_decay * weight;
  weight -= step;
}

Matrix scaled(Matrix a, double factor) {
  for (double& x : a.data) x *= factor;
  return a;
}

Matrix identity(int64_t n) {
  Matrix a{n, n, Vector(static_cast<size_t>(n * n))};
  for (int64_t i = 0; i < n; ++i) a.at(i, i) = 1;
  return a;
}

double trace(const Matrix& a) {
  double sum = 0;
  for (int64_t i = 0; i < a.rows; ++i) sum += a.at(i, i);
  return sum;
}

// V^T V + ridge tr(V^T V) I
Matrix gram(const Matrix& v) {
  constexpr double kRidge = 0x1p-22;
  Matrix a = multiply(transpose(v), v);
  const double ridge = kRidge * trace(a);
  for (int64_t i = 0; i < a.rows; ++i) a.at(i, i) += ridge;
  return a;
}

// L, lower triangular, with L L^T = A
Matrix cholesky(const Matrix& a) {
  Matrix l{a.rows, a.rows, Vector(a.data.size())};
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j <= i; ++j) {
      double rest = a.at(i, j);
      for (int64_t k = 0; k < j; ++k) rest -= l.at(i, k) * l.at(j, k);
      l.at(i, j) = i == j ? std::sqrt(rest) : rest / l.at(j, j);
    }
  }
  return l;
}

// L^-1 of a lower triangular L
Matrix lower_inverse(const Matrix& l) {
  Matrix inverse{l.rows, l.rows, Vector(l.data.size())};
  for (int64_t j = 0; j < l.rows; ++j) {
    for (int64_t i = j; i < l.rows; ++i) {
      double rest = i == j ? 1 : 0;
      for (int64_t k = j; k < i; ++k) rest -= l.at(i, k) * inverse.at(k, j);
      inverse.at(i, j) = rest / l.at(i, i);
    }
  }
  return inverse;
}

// A^-1 of a positive definite A
Matrix inverse(const Matrix& a) {
  const Matrix l = lower_inverse(cholesky(a));
  return multiply(transpose(l), l);
}

Matrix orth(const Matrix& v) { return multiply(v, transpose(lower_inverse(cholesky(gram(v))))); }

Matrix random_signs(int64_t rows, int64_t columns) {
  Matrix s{rows, columns, Vector(static_cast<size_t>(rows * columns))};
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      uint32_t h = (static_cast<uint32_t>(i) + 1) * 0x9e3779b9U + static_cast<uint32_t>(j / 32) * 0x85ebca6bU;
      h = (h ^ (h >> 16)) * 0x7feb352dU;
      h = (h ^ (h >> 15)) * 0x846ca68bU;
      h ^= h >> 16;
      s.at(i, j) = (h >> (j % 32) & 1U) != 0 ? -1 : 1;
    }
  }
  return s;
}

}  // namespace

// The sum over k of a(i, k) b(k, j), four k at a time over blocks of b that stay in the cache: a matrix of 768 x 3072
// takes seconds instead of minutes.
Matrix multiply(const Matrix& a, const Matrix& b) {
  constexpr int64_t kInner = 64;
  constexpr int64_t kColumns = 512;
  Matrix c{a.rows, b.columns, Vector(static_cast<size_t>(a.rows * b.columns))};
  for (int64_t j0 = 0; j0 < b.columns; j0 += kColumns) {
    const int64_t j1 = std::min(j0 + kColumns, b.columns);
    for (int64_t k0 = 0; k0 < a.columns; k0 += kInner) {
      const int64_t k1 = std::min(k0 + kInner, a.columns);
      for (int64_t i = 0; i < a.rows; ++i) {
        double* const out = &c.at(i, 0);
        int64_t k = k0;
        for (; k + 4 <= k1; k += 4) {
          const double* const row = &b.at(k, 0);
          const double x[] = {a.at(i, k), a.at(i, k + 1), a.at(i, k + 2), a.at(i, k + 3)};
          for (int64_t j = j0; j < j1; ++j) {
            out[j] += x[0] * row[j] + x[1] * row[b.columns + j] + x[2] * row[2 * b.columns + j] +
                      x[3] * row[3 * b.columns + j];
          }
        }
        for (; k < k1; ++k) {
          for (int64_t j = j0; j < j1; ++j) out[j] += a.at(i, k) * b.at(k, j);
        }
      }
    }
  }
  return c;
}

Matrix transpose(const Matrix& a) {
  Matrix t{a.columns, a.rows, Vector(a.data.size())};
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.columns; ++j) t.at(j, i) = a.at(i, j);
  }
  return t;
}

double frobenius_norm(const Matrix& a) {
  double sum = 0;
  for (double x : a.data) sum += x * x;
  return std::sqrt(sum);
}

double round_to_wire(double value, Wire wire) {
  if (wire == Wire::kExact) return value;
  return round_to_bits(value, wire == Wire::kF32 ? 24 : 8);
}

Vector momentum_update(const MomentumOptions& options, const Vector& grad, Vector& momentum) {
  if (momentum.empty()) momentum.resize(grad.size());
  Vector update(grad.size());
  for (size_t i = 0; i < grad.size(); ++i) {
    const double g = grad[i] * options.grad_scale;
    double& m = momentum[i];
    if (options.form == MomentumOptions::Form::kEma) {
      m = options.mu * m + (1 - options.mu) * g;
      update[i] = options.nesterov ? (1 - options.mu) * g + options.mu * m : m;
    } else {
      m = options.mu * m + g;
      update[i] = options.nesterov ? g + options.mu * m : m;
    }
  }
  return update;
}

Matrix capped(const Matrix& x, int64_t sketch) {
  if (x.rows > x.columns) return transpose(capped(transpose(x), sketch));
  constexpr double kLevel = 0.3;
  constexpr double kFloor = 0x1p-14;
  constexpr double kPoles[][2] = {{1.5314329810549612, 2.1057724793059793},  // shift, weight
                                  {128.00472036710346, 15.090007938080543},
                                  {10699.185724281857, 176.00996502182198}};
  const int64_t r = std::min(x.rows, sketch);
  Matrix q = identity(r);
  if (x.rows > sketch) q = orth(multiply(x, orth(multiply(transpose(x), random_signs(x.rows, r)))));
  const Matrix e = multiply(transpose(q), x);
  const Matrix n = gram(q);
  const Matrix t = gram(transpose(e));
  const double d = kFloor * trace(t);
  // (T / d + factor N)^-1
  const auto shifted_inverse = [&](double factor) {
    Matrix sum = scaled(n, factor);
    for (size_t i = 0; i < sum.data.size(); ++i) sum.data[i] += t.data[i] / d;
    return inverse(sum);
  };
  const double c = kLevel * std::sqrt(static_cast<double>(r) / trace(multiply(shifted_inverse(1), n)));
  Matrix m = inverse(n);
  for (const auto& [shift, weight] : kPoles) {
    const Matrix term = shifted_inverse(1 + shift);
    for (size_t i = 0; i < m.data.size(); ++i) m.data[i] -= c * weight * term.data[i];
  }
  const Matrix change = multiply(q, multiply(m, e));
  Matrix result = x;
  for (size_t i = 0; i < result.data.size(); ++i) result.data[i] -= change.data[i];
  return result;
}

Matrix newton_schulz(const Matrix& update, const NewtonSchulz& options) {
  if (update.rows > update.columns) return transpose(newton_schulz(transpose(update), options));
  const double norm = frobenius_norm(update);
  if (norm == 0) return update;
  Matrix x = scaled(update, 1 / (options.safety * norm + options.eps));
  if (options.sketch != 0) x = capped(x, options.sketch);
  if (options.aol) {
    const Matrix gram = multiply(x, transpose(x));
    for (int64_t i = 0; i < x.rows; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < x.rows; ++j) sum += std::abs(gram.at(i, j));
      for (int64_t j = 0; j < x.columns; ++j) x.at(i, j) *= sum > 0 ? 1 / std::sqrt(sum) : 0;
    }
  }
  if (options.gram_norm) {
    x = scaled(x, 1 / (options.safety * std::sqrt(frobenius_norm(multiply(x, transpose(x))))));
  }
  for (const auto& [a, b, c] : options.steps) {
    const Matrix gram = multiply(x, transpose(x));
    const Matrix square = multiply(gram, gram);
    Matrix polynomial = gram;
    for (size_t i = 0; i < gram.data.size(); ++i) polynomial.data[i] = b * gram.data[i] + c * square.data[i];
    const Matrix product = multiply(polynomial, x);
    for (size_t i = 0; i < x.data.size(); ++i) x.data[i] = a * x.data[i] + product.data[i];
  }
  return x;
}

Axis longer_axis(const Matrix& matrix) { return matrix.columns > matrix.rows ? Axis::kColumns : Axis::kRows; }

Matrix normuon(const NorMuonOptions& options, const Matrix& o, Vector& variance) {
  if (options.axis == Axis::kColumns) {
    NorMuonOptions rows = options;
    rows.axis = Axis::kRows;
    return transpose(normuon(rows, transpose(o), variance));
  }
  if (variance.empty()) variance.resize(static_cast<size_t>(o.rows));
  Matrix result = o;
  for (int64_t i = 0; i < o.rows; ++i) {
    double mean = 0;
    for (int64_t j = 0; j < o.columns; ++j) mean += o.at(i, j) * o.at(i, j) / static_cast<double>(o.columns);
    double& v = variance[static_cast<size_t>(i)];
    v = options.beta2 * v + (1 - options.beta2) * mean;
    for (int64_t j = 0; j < o.columns; ++j) result.at(i, j) /= std::sqrt(v) + options.eps;
  }
  const double after = frobenius_norm(result);
  return scaled(result, after > 0 ? frobenius_norm(o) / after : 0);
}

double shape_scale(Scale scale, int64_t output, int64_t input) {
  const double m = static_cast<double>(output);
  const double n = static_cast<double>(input);
  switch (scale) {
    case Scale::kSpectral:
      return std::sqrt(m / n);
    case Scale::kJordan:
      return std::sqrt(std::max(1.0, m / n));
    case Scale::kRms:
      return 0.2 * std::sqrt(std::max(m, n));
    case Scale::kFan:
      return std::sqrt(n / m);
    case Scale::kNone:
      break;
  }
  return 1;
}

void apply(const ApplyOptions& options, const Vector& update, Vector& weight) {
  for (size_t i = 0; i < weight.size(); ++i) {
    decay_and_step(options.lr, options.weight_decay, options.decay, options.lr * options.scale * update[i], weight[i]);
  }
}

void muon_step(const MuonOptions& options, const Matrix& grad, MuonState& state, Matrix& weight) {
  Matrix update{grad.rows, grad.columns, momentum_update(options.momentum, grad.data, state.momentum)};
  for (double& x : update.data) x = round_to_wire(x, options.wire);
  Matrix o = newton_schulz(update, options.newton_schulz);
  if (options.normuon) o = normuon(options.norm, o, state.variance);
  for (double& x : o.data) x = round_to_wire(x, options.wire);
  apply(options.apply, o.data, weight.data);
}

void adamw(const AdamWOptions& options, const Vector& grad, Vector& first, Vector& second, Vector& weight) {
  if (first.empty()) first.resize(grad.size());
  if (second.empty()) second.resize(grad.size());
  const double step = static_cast<double>(options.step);
  for (size_t i = 0; i < grad.size(); ++i) {
    const double g = grad[i] * options.grad_scale;
    first[i] = options.beta1 * first[i] + (1 - options.beta1) * g;
    second[i] = options.beta2 * second[i] + (1 - options.beta2) * g * g;
    const double mean = first[i] / (1 - std::pow(options.beta1, step));
    const double square = second[i] / (1 - std::pow(options.beta2, step));
    const double change = options.lr * mean / (std::sqrt(square) + options.eps);
    decay_and_step(options.lr, options.weight_decay, options.decay, change, weight[i]);
  }
}

void lion(const LionOptions& options, const Vector& grad, Vector& momentum, Vector& weight) {
  if (momentum.empty()) momentum.resize(grad.size());
  for (size_t i = 0; i < grad.size(); ++i) {
    const double g = grad[i] * options.grad_scale;
    const double direction = sign(options.beta1 * momentum[i] + (1 - options.beta1) * g);
    momentum[i] = options.beta2 * momentum[i] + (1 - options.beta2) * g;
    decay_and_step(options.lr, options.weight_decay, options.decay, options.lr * direction, weight[i]);
  }
}

}  // namespace muster::reference
