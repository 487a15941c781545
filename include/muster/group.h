// What a group of parameters does in a step: every number of it may change from one step to the next.
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
  kCautious,  // only where weight and update do not have opposite signs
};

// How large a step a matrix takes, from its global shape.
enum class StepScale : uint8_t {
  kNone,      // 1
  kSpectral,  // sqrt(output / input)
  kJordan,    // sqrt(max(1, output / input))
  kRms,       // 0.2 sqrt(max(output, input)): the RMS of an AdamW step
  kFan,       // sqrt(input / output)
};
StepScale parse_step_scale(std::string_view name);  // none, spectral, jordan, rms or fan; else throws InvalidArgument

// The polynomials of Newton-Schulz, one a step.
struct Coefficients {
  // X <- a X + (b A + c A^2) X, with A the Gram matrix of X.
  struct Step {
    double a = 0;
    double b = 0;
    double c = 0;

    bool operator==(const Step&) const = default;
  };
  // What the first Gram matrix A changes before the first step. Either way bounds the spectral norm by 1.
  enum class Rescale : uint8_t {
    kNone,
    kAol,   // rows (tall matrices: columns) times rsqrt(sum_j |A_ij|); changes the polar factor
    kGram,  // X is divided by safety * sqrt(||A||_F), with A of X itself; the polar factor stays
  };

  std::string name = "custom";
  std::vector<Step> steps;
  double safety = 1;  // X is divided by safety * ||X||_F first
  Rescale rescale = Rescale::kNone;
};

// jordan, quintic, polar_express, polar_express_safe, polar_express_tight, cans or aol4. Throws InvalidArgument for any
// other name; a custom set is a Coefficients filled in by hand.
Coefficients coefficients(std::string_view name);
std::vector<std::string_view> coefficient_names();

// Hyperparameters. All ranks set them alike; a step says which group differs if they did not.
struct Group {
  double lr = 0.02;
  double weight_decay = 0;  // per step, times lr and the parameter's multiplier; never times the scale of the shape
  Decay decay = Decay::kPlain;
  int64_t every = 1;  // takes part in steps every, 2 every, ... and moves no bytes on the others

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

// Throws InvalidArgument naming the field and its value.
void validate(const Group& group);

}  // namespace muster
