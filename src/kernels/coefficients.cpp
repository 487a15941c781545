#include <cmath>

#include "base/text.h"
#include "kernels/spectral_cap.h"
#include "muster/error.h"
#include "muster/group.h"

namespace muster {
namespace {

const std::vector<Coefficients>& all() {
  static const std::vector<Coefficients::Step> polar_express{
      {8.156554524902461, -22.48329292557795, 15.878769915207462},
      {4.042929935166739, -2.808917465908714, 0.5000178451051316},
      {3.8916678022926607, -2.772484153217685, 0.5060648178503393},
      {3.285753657755655, -2.3681294933425376, 0.46449024233003106},
      {2.3465413258596377, -1.7097828382687081, 0.42323551169305323}};
  static const std::vector<Coefficients> sets{
      {.name = "jordan", .steps = std::vector<Coefficients::Step>(5, {3.4445, -4.7750, 2.0315})},
      {.name = "quintic",
       .steps = {{4.0848, -6.8946, 2.9270},
                 {3.9505, -6.3029, 2.6377},
                 {3.7418, -5.5913, 2.3037},
                 {2.8769, -3.1427, 1.2046},
                 {2.8366, -3.0525, 1.2012}}},
      {.name = "polar_express", .steps = polar_express, .safety = 1.02},
      // The same polynomials with a safety factor of 1.05 in every step, for half precision.
      {.name = "polar_express_safe",
       .steps = {{7.892583, -20.383014, 13.555306},
                 {3.911485, -2.546464, 0.426899},
                 {3.760658, -2.512819, 0.432365},
                 {3.160400, -2.149650, 0.399637},
                 {2.191097, -1.441662, 0.328146}}},
      // Divides by a tighter norm, so that singular values enter the steps up to n^(1/4) times as large.
      {.name = "polar_express_tight", .steps = polar_express, .safety = 1.02, .rescale = Coefficients::Rescale::kGram},
      // Minimax on [0.016, 1] and [0.004, 1], within 0.16, for inputs of every step that are off by up to 2 %: enough
      // once the largest singular values are capped.
      {.name = "capped3",
       .steps = {{7.859615, -22.699111, 16.713835}, {3.333444, -2.414054, 0.473357}, {2.36781, -1.69214, 0.403417}},
       .safety = 1.02,
       .rescale = Coefficients::Rescale::kGram,
       .sketch = 96},
      {.name = "capped4",
       .steps = {{8.340981, -24.597368, 18.223025},
                 {3.912477, -2.806614, 0.513492},
                 {3.32201, -2.406086, 0.472552},
                 {2.356587, -1.68289, 0.40259}},
       .safety = 1.02,
       .rescale = Coefficients::Rescale::kGram,
       .sketch = 64},
      {.name = "cans",
       .steps = {{8.4703, -25.1081, 18.6293},
                 {4.1828, -3.1087, .5806},
                 {3.9619, -2.9541, .5630},
                 {3.2866, -2.4647, .5074},
                 {2.2737, -1.6447, .4162}}},
      {.name = "aol4",
       .steps =
           {{4.6051, -9.6552, 5.6769}, {4.7505, -6.0861, 2.1790}, {2.7763, -2.3190, 0.5523}, {2.4231, -2.2861, 0.8193}},
       .rescale = Coefficients::Rescale::kAol},
  };
  return sets;
}

}  // namespace

Coefficients coefficients(std::string_view name) {
  for (const Coefficients& set : all()) {
    if (set.name == name) return set;
  }
  std::string known;
  for (const Coefficients& set : all()) known += (known.empty() ? "" : ", ") + set.name;
  base::fail("coefficients {}: expected one of {}", base::in_quotes(name), known);
}

std::vector<std::string_view> coefficient_names() {
  std::vector<std::string_view> names;
  for (const Coefficients& set : all()) names.push_back(set.name);
  return names;
}

void validate(const Coefficients& coefficients) {
  constexpr size_t kMostSteps = 64;
  const auto& [name, steps, safety, rescale, sketch] = coefficients;
  if (steps.empty() || steps.size() > kMostSteps) {
    base::fail("coefficients \"{}\": {} steps, expected 1 to {}", name, steps.size(), kMostSteps);
  }
  for (const Coefficients::Step& step : steps) {
    for (const double value : {step.a, step.b, step.c}) {
      if (!std::isfinite(value)) base::fail("coefficient {}: expected a finite number", value);
    }
  }
  if (!std::isfinite(safety) || safety <= 0) base::fail("safety {}: expected a finite number above 0", safety);
  if (!kernels::is_sketch(sketch)) {
    base::fail("coefficients \"{}\": sketch {}, expected 0, 32, 64 or 96", name, sketch);
  }
  if (sketch != 0 && rescale != Coefficients::Rescale::kGram) {
    base::fail("coefficients \"{}\": sketch {} needs the rescaling kGram", name, sketch);
  }
}

}  // namespace muster
