// Unsharded tensors to and from the pieces that ranks have.
#pragma once

#include <cstddef>
#include <span>

#include "engine/state/state_shard.h"
#include "muster/communicator.h"

namespace muster::engine {

// All ranks together; each gets the whole.
StateTensor gather(const StateShard& slice, Communicator& communicator);

// Writes this rank's pieces from the whole.
void fill(const StateShard& slice, std::span<const std::byte> whole);

// Throws InvalidArgument, naming the tensor, unless type, shape and bytes fit.
void check_like(const StateInfo& expected, const StateTensor& tensor);

}  // namespace muster::engine
