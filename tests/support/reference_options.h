// A set of coefficients in the reference's words.
#pragma once

#include "muster/group.h"
#include "reference/reference.h"

namespace muster::test {

inline reference::NewtonSchulz reference_options(const Coefficients& set, double eps = 0) {
  reference::NewtonSchulz options;
  for (const Coefficients::Step& step : set.steps) options.steps.push_back({step.a, step.b, step.c});
  options.safety = set.safety;
  options.eps = eps;
  options.aol = set.rescale == Coefficients::Rescale::kAol;
  options.gram_norm = set.rescale == Coefficients::Rescale::kGram;
  options.sketch = set.sketch;
  return options;
}

}  // namespace muster::test
