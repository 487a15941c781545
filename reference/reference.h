// Muon, NorMuon, AdamW and Lion once more: slow, obvious, in float64, on one process, and sharing no code with the
// engine. What the engine computes is compared with this.
//
// A matrix is row-major; its rows are the output dim. Every function says what it does in one formula.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace muster::reference {

using Vector = std::vector<double>;

struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  Vector data;

  double& at(int64_t i, int64_t j) { return data[static_cast<size_t>(i * columns + j)]; }
  const double& at(int64_t i, int64_t j) const { return data[static_cast<size_t>(i * columns + j)]; }
};

Matrix multiply(const Matrix& a, const Matrix& b);
Matrix transpose(const Matrix& a);
double frobenius_norm(const Matrix& a);

// What updates travel in. kExact rounds nothing; the others round to nearest, ties to even.
enum class Wire : uint8_t { kExact, kF32, kBf16 };
double round_to_wire(double value, Wire wire);

struct MomentumOptions {
  double mu = 0.95;
  enum class Form : uint8_t { kEma, kSum } form = Form::kEma;
  bool nesterov = true;
  double grad_scale = 1;  // clipping: multiplies every gradient first
};

// EMA: M <- M + (1 - mu) (G - M), update G + mu (M - G) with nesterov, else M.
// Sum: M <- mu M + G, update G + mu M with nesterov, else M. Returns the update; changes `momentum`.
Vector momentum_update(const MomentumOptions& options, const Vector& grad, Vector& momentum);

struct NewtonSchulz {
  std::vector<std::array<double, 3>> steps;  // (a, b, c)
  double safety = 1;
  double eps = 0;
  bool aol = false;        // before step 1: rows of the short side times rsqrt(sum_j |A_ij|)
  bool gram_norm = false;  // before step 1: X <- X / (safety sqrt(||A||_F))
  int64_t sketch = 0;      // first of all X <- capped(X, sketch), unless 0
};

// X with its r largest singular values, as a sketch finds them, reduced to about one value; r is `sketch`, or n if that
// is less. X is n x m, n <= m, and not zero; a tall matrix is capped transposed.
//   orth(V) = V L^-T   with L L^T = gram(V) = V^T V + ridge tr(V^T V) I
//   Q = orth(X orth(X^T S)), S being n x r signs; I if n <= r
//   E = Q^T X, N = gram(Q), T = gram(E^T), d = floor tr(T), X <- X - Q (N^-1 - c H) E
//   H = sum over poles of weight (T / d + (1 + shift) N)^-1, c = level sqrt(r / tr((T / d + N)^-1 N))
Matrix capped(const Matrix& x, int64_t sketch);

// X <- X / (safety ||X||_F + eps); a step is A = X X^T, X <- a X + (b A + c A^2) X. Zero stays zero.
Matrix newton_schulz(const Matrix& update, const NewtonSchulz& options);

enum class Axis : uint8_t { kRows, kColumns };
Axis longer_axis(const Matrix& matrix);  // a tie: rows

struct NorMuonOptions {
  Axis axis = Axis::kRows;
  double beta2 = 0.95;
  double eps = 1e-8;
};

// v_i = mean_j O_ij^2, V <- V + (1 - beta2)(v - V), O_ij / (sqrt(V_i) + eps), rescaled to the norm of O. V starts at 0
// and is not bias-corrected.
Matrix normuon(const NorMuonOptions& options, const Matrix& o, Vector& variance);

enum class Scale : uint8_t { kNone, kSpectral, kJordan, kRms, kFan };
double shape_scale(Scale scale, int64_t output, int64_t input);

// W <- W - lr wd W, everywhere or (cautious) where W and the update do not have opposite signs.
enum class Decay : uint8_t { kPlain, kCautious };

struct ApplyOptions {
  double lr = 0.02;  // times the parameter's multiplier
  double scale = 1;  // of the step, from the shape; decay does not see it
  double weight_decay = 0;
  Decay decay = Decay::kPlain;
};

// Decay first, then W <- W - lr scale U.
void apply(const ApplyOptions& options, const Vector& update, Vector& weight);

struct MuonOptions {
  MomentumOptions momentum;
  Wire wire = Wire::kBf16;
  NewtonSchulz newton_schulz;
  bool normuon = false;
  NorMuonOptions norm;
  ApplyOptions apply;
};

struct MuonState {
  Vector momentum;
  Vector variance;
};

// One whole step of one matrix: momentum, round to wire, orthogonalize, NorMuon where it is on, round to wire, apply.
void muon_step(const MuonOptions& options, const Matrix& grad, MuonState& state, Matrix& weight);

struct AdamWOptions {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0;
  Decay decay = Decay::kPlain;
  int64_t step = 1;  // counts from 1
  double grad_scale = 1;
};
void adamw(const AdamWOptions& options, const Vector& grad, Vector& first, Vector& second, Vector& weight);

struct LionOptions {
  double lr = 1e-4;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
  Decay decay = Decay::kPlain;
  double grad_scale = 1;
};
void lion(const LionOptions& options, const Vector& grad, Vector& momentum, Vector& weight);

}  // namespace muster::reference
