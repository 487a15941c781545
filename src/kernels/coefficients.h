// The polynomials of Newton-Schulz, by name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace muster::kernels {

// X <- a X + (b A + c A^2) X, with A the Gram matrix of X.
struct Step {
  double a = 0;
  double b = 0;
  double c = 0;
};

// What happens to the rows (tall matrices: columns) before the first step.
enum class Rescale : unsigned char {
  kNone,
  kAol,  // each times rsqrt(sum_j |A_ij|), which bounds the spectral norm by 1; changes the polar factor
};

struct Coefficients {
  std::string name = "custom";
  std::vector<Step> steps;
  double safety = 1;  // X is divided by safety * ||X||_F first
  Rescale rescale = Rescale::kNone;
};

// jordan, quintic, polar_express, polar_express_safe, cans or aol4. Throws InvalidArgument for any other name; a custom
// set is a Coefficients filled in by hand.
Coefficients coefficients(std::string_view name);
std::vector<std::string_view> coefficient_names();

}  // namespace muster::kernels
