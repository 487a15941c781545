// State tensors of all ranks: exported from their shards as whole tensors, and imported into them.
#pragma once

#include <cstddef>
#include <span>

#include "engine/state/state_shard.h"
#include "muster/communicator.h"

namespace muster::engine {

// The whole tensor, on every rank. Every rank calls it with its own shard.
StateTensor export_tensor(const StateShard& shard, Communicator& communicator);

// Fills this rank's shard from the whole tensor.
void import_tensor(const StateShard& shard, std::span<const std::byte> whole);

// Throws InvalidArgument, naming the tensor, unless type, shape, size and values are as expected.
void check_import(const StateInfo& expected, const StateTensor& tensor);

}  // namespace muster::engine
