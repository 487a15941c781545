// The factor by which a step is scaled for the shape of its matrix.
#pragma once

#include <cstdint>

#include "muster/group.h"

namespace muster::kernels {

// `output` and `input` are the sizes of the whole parameter or block in its declared orientation, not of a shard.
double step_scale(StepScale scale, int64_t output, int64_t input);

}  // namespace muster::kernels
