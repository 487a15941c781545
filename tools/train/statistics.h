// Several runs as one figure: mean, deviation, and whether they beat a target.
#pragma once

#include <span>

namespace muster::train {

double mean(std::span<const double> values);                // NaN of none
double standard_deviation(std::span<const double> values);  // of a sample: over n - 1. NaN of fewer than two

// P(T <= t) of Student's t with this many degrees of freedom.
double student_t_cdf(double t, double degrees);

// The one-sided t-test: how likely a mean this far below `target` would be if the true one were the target. NaN where
// there are fewer than two values, or all are the target.
double p_below(std::span<const double> values, double target);

}  // namespace muster::train
