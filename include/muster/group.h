/// \file
/// The hyperparameters of a group of parameters. All of them may change from one step to the next.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

/// How momentum M and update U follow from the gradient G, with mu = Group::momentum.
enum class MomentumForm : uint8_t {
  kEma,  ///< M becomes M + (1 - mu)(G - M); with nesterov U = G + mu (M - G), else U = M
  kSum,  ///< M becomes mu M + G; with nesterov U = G + mu M, else U = M
};

/// Which elements weight decay applies to.
enum class Decay : uint8_t {
  kPlain,     ///< all
  kCautious,  ///< only elements whose weight and update do not have opposite signs
};

/// The factor of a matrix's step, from the output and input sizes of its global shape.
enum class StepScale : uint8_t {
  kNone,      ///< 1
  kSpectral,  ///< sqrt(output / input)
  kJordan,    ///< sqrt(max(1, output / input))
  kRms,       ///< 0.2 sqrt(max(output, input)): the RMS of an AdamW step
  kFan,       ///< sqrt(input / output)
};
/// The scale of that name: none, spectral, jordan, rms or fan. Throws InvalidArgument for any other.
StepScale parse_step_scale(std::string_view name);

/// The polynomials of Newton-Schulz, one per iteration.
struct Coefficients {
  /// One iteration: X becomes a X + (b A + c A^2) X, with A the Gram matrix of X.
  struct Step {
    double a = 0;  ///< times X
    double b = 0;  ///< times A X
    double c = 0;  ///< times A^2 X

    /// Compares all fields.
    bool operator==(const Step&) const = default;
  };
  /// How X is rescaled by its first Gram matrix A, before the first iteration, so that its spectral norm is at most 1.
  enum class Rescale : uint8_t {
    kNone,  ///< not at all
    kAol,   ///< each row (tall matrices: column) times rsqrt(sum_j |A_ij|); changes the polar factor
    kGram,  ///< X is divided by safety * sqrt(||A||_F); keeps the polar factor
  };

  std::string name = "custom";       ///< for errors and reports
  std::vector<Step> steps;           ///< one per iteration, in their order
  double safety = 1;                 ///< X is divided by safety * ||X||_F first
  Rescale rescale = Rescale::kNone;  ///< what follows that division
  /// Columns of the random sketch with which the largest singular values are capped before the first step, which leaves
  /// the polar factor: 32, 64 or 96. 0 turns the cap off. Needs Rescale::kGram.
  int sketch = 0;
};

/// A built-in set: jordan, quintic, polar_express, polar_express_safe, polar_express_tight, capped3, capped4, cans or
/// aol4. Throws InvalidArgument for any other name. Fill in a Coefficients for a set of your own.
Coefficients coefficients(std::string_view name);
/// The names that coefficients() knows.
std::vector<std::string_view> coefficient_names();
/// Throws InvalidArgument that names the field and its value.
void validate(const Coefficients& coefficients);

/// The hyperparameters of a group. Every rank must set the same values: a step throws InvalidArgument that names the
/// first group that differs.
struct Group {
  double lr = 0.02;             ///< learning rate
  double weight_decay = 0;      ///< per step, times lr and the parameter's multiplier, not times the shape's scale
  Decay decay = Decay::kPlain;  ///< which elements decay
  int64_t every = 1;            ///< N: updated only on steps N, 2N, 3N, ...; other steps move none of its bytes

  double momentum = 0.95;                           ///< Muon and NorMuon: mu, at least 0 and less than 1
  MomentumForm momentum_form = MomentumForm::kEma;  ///< Muon and NorMuon
  bool nesterov = true;                             ///< Muon and NorMuon: the update looks one step ahead
  /// Muon and NorMuon: the polynomials of Newton-Schulz.
  Coefficients coefficients = muster::coefficients("polar_express");
  StepScale scale = StepScale::kJordan;  ///< Muon and NorMuon: the factor of a step, from the matrix's shape

  double beta1 = 0.9;   ///< AdamW and Lion: decay rate of the first moment
  double beta2 = 0.95;  ///< AdamW and Lion; NorMuon: decay rate of the mean squares
  double eps = 1e-8;    ///< AdamW and NorMuon: added to the root of the second moment
};

/// Throws InvalidArgument that names the field and its value.
void validate(const Group& group);

}  // namespace muster
