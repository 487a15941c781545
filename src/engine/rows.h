// Values of weights of any form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/block.h"
#include "kernels/kernels.h"
#include "muster/optimizer.h"

namespace muster::engine {

// The f32 values that the weights of a block stand for; `first` of the block is in the shard.
void read_weights(kernels::Kernels& kernels, const ParameterMemory& memory, const Block& block,
                  std::vector<float>& values);

}  // namespace muster::engine
