// What one rank stores of every parameter.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "muster/optimizer.h"
#include "plan/catalog.h"

namespace muster::engine {

// One entry per parameter.
struct Holdings {
  Holdings(const plan::Catalog& catalog, int32_t own_rank);

  bool any(size_t parameter) const { return elements[parameter] > 0; }

  int32_t rank;
  std::vector<int64_t> elements;     // of this rank's shard
  std::vector<int32_t> replica;      // which of the replicas of that shard this rank is
  std::vector<int32_t> replicas;     // how many replicas the shard has
  std::vector<uint64_t> shard_keys;  // equal on replicas of one shard
};

// Throws InvalidArgument, naming the parameter, unless there is memory of the right form for what this rank stores.
// `groups` is their number.
void check_memory(const Problem& problem, const Holdings& holdings, std::span<const ParameterMemory> memory,
                  int32_t groups);

// Checks the memory of one parameter.
void check_memory(const Problem& problem, const Holdings& holdings, size_t parameter, const ParameterMemory& memory,
                  int32_t groups);

}  // namespace muster::engine
