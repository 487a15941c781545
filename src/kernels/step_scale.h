// The scale of a step.
#pragma once

#include <cstdint>

#include "muster/group.h"

namespace muster::kernels {

// Of the whole parameter or block, in its declared orientation: never of a shard.
double step_scale(StepScale scale, int64_t output, int64_t input);

}  // namespace muster::kernels
