// How large a step a matrix takes, from its global shape.
#pragma once

#include <cstdint>
#include <string_view>

namespace muster::kernels {

enum class StepScale : uint8_t {
  kNone,      // 1
  kSpectral,  // sqrt(output / input)
  kJordan,    // sqrt(max(1, output / input))
  kRms,       // 0.2 sqrt(max(output, input)): the RMS of an AdamW step
  kFan,       // sqrt(input / output)
};

// none, spectral, jordan, rms or fan. Throws InvalidArgument for any other name.
StepScale step_scale_named(std::string_view name);

// Of the whole parameter or block, in its declared orientation: never of a shard.
double step_scale(StepScale scale, int64_t output, int64_t input);

}  // namespace muster::kernels
