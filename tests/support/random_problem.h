// Random problems: meshes, placements, uneven, empty, replicated, nested and flat shards, every kind of matrix.
#pragma once

#include <cstdint>

#include "muster/plan.h"

namespace muster::test {

struct RandomCase {
  Problem problem;
  PlanOptions options;
};

// The same seed gives the same case on every machine.
RandomCase random_case(uint64_t seed);

// The same for `global` in replicas of all its ranks, each on a node of its own with slow links between them: they do
// best without each other.
RandomCase in_replicas(RandomCase c, int32_t replicas);

// The same where the holders of parameters keep their state: of all parameters that allow it, or of every other one.
RandomCase with_held_state(RandomCase c, uint64_t seed);

}  // namespace muster::test
