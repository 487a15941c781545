#include "kernels/step_scale.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "muster/error.h"

namespace muster {

StepScale parse_step_scale(std::string_view name) {
  if (name == "none") return StepScale::kNone;
  if (name == "spectral") return StepScale::kSpectral;
  if (name == "jordan") return StepScale::kJordan;
  if (name == "rms") return StepScale::kRms;
  if (name == "fan") return StepScale::kFan;
  throw InvalidArgument("scale \"" + std::string(name) + "\": expected none, spectral, jordan, rms or fan");
}

namespace kernels {

double step_scale(StepScale scale, int64_t output, int64_t input) {
  const double ratio = static_cast<double>(output) / static_cast<double>(input);
  switch (scale) {
    case StepScale::kNone:
      return 1;
    case StepScale::kSpectral:
      return std::sqrt(ratio);
    case StepScale::kJordan:
      return std::sqrt(std::max(1.0, ratio));
    case StepScale::kRms:
      return 0.2 * std::sqrt(static_cast<double>(std::max(output, input)));
    case StepScale::kFan:
      return std::sqrt(1 / ratio);
  }
  throw Internal("step_scale: not a scale: " + std::to_string(static_cast<int>(scale)));
}

}  // namespace kernels

}  // namespace muster
