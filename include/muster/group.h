// The hyperparameters of a group of parameters. All of them may change from one step to the next.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

enum class MomentumForm : uint8_t {
  kEma,  // M <- M + (1 - mu)(G - M); nesterov U = G + mu (M - G)
  kSum,  // M <- mu M + G; nesterov U = G + mu M
};

enum class Decay : uint8_t {
  kPlain,
  kCautious,  // only elements whose weight and update do not have opposite signs
};

// The factor of a matrix's step, from the output and input sizes of its global shape.
enum class StepScale : uint8_t {
  kNone,      // 1
  kSpectral,  // sqrt(output / input)
  kJordan,    // sqrt(max(1, output / input))
  kRms,       // 0.2 sqrt(max(output, input)): the RMS of an AdamW step
  kFan,       // sqrt(input / output)
};
StepScale parse_step_scale(std::string_view name);  // none, spectral, jordan, rms or fan; else throws InvalidArgument

// The polynomials of Newton-Schulz, one per iteration.
struct Coefficients {
  // X <- a X + (b A + c A^2) X, with A the Gram matrix of X.
  struct Step {
    double a = 0;
    double b = 0;
    double c = 0;

    bool operator==(const Step&) const = default;
  };
  // How X is rescaled by its first Gram matrix A, before the first iteration, so that its spectral norm is at most 1.
  enum class Rescale : uint8_t {
    kNone,
    kAol,   // each row (tall matrices: column) times rsqrt(sum_j |A_ij|); changes the polar factor
    kGram,  // X is divided by safety * sqrt(||A||_F); keeps the polar factor
  };

  std::string name = "custom";
  std::vector<Step> steps;
  double safety = 1;  // X is divided by safety * ||X||_F first
  Rescale rescale = Rescale::kNone;
  // Columns of the random sketch with which the largest singular values are capped before the first step, which leaves
  // the polar factor: 32, 64 or 96. 0 turns the cap off. Needs Rescale::kGram.
  int sketch = 0;
};

// A built-in set: jordan, quintic, polar_express, polar_express_safe, polar_express_tight, capped3, capped4, cans or
// aol4. Throws InvalidArgument for any other name. Fill in a Coefficients for a set of your own.
Coefficients coefficients(std::string_view name);
std::vector<std::string_view> coefficient_names();

// Every rank must set the same values: a step throws InvalidArgument that names the first group that differs.
struct Group {
  double lr = 0.02;
  double weight_decay = 0;  // per step, times lr and the parameter's multiplier, but not times the scale of the shape
  Decay decay = Decay::kPlain;
  int64_t every = 1;  // updated only on steps every, 2 every, 3 every, ...; other steps move none of its bytes

  // Muon and NorMuon.
  double momentum = 0.95;
  MomentumForm momentum_form = MomentumForm::kEma;
  bool nesterov = true;
  Coefficients coefficients = muster::coefficients("polar_express");
  StepScale scale = StepScale::kJordan;

  // AdamW and Lion; beta2 and eps are NorMuon's too.
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
};

// Throws InvalidArgument that names the field and its value.
void validate(const Group& group);

}  // namespace muster
