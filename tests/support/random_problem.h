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

}  // namespace muster::test
