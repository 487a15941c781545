// Training runs on random problems.
#pragma once

#include "support/random_problem.h"
#include "support/training.h"

namespace muster::test {

// A random problem, with everything else about a training run varied too.
Training random_training(uint64_t seed, const RandomCase& random);

}  // namespace muster::test
