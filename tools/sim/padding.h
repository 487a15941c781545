// What the public code that `chunked` and `routed` reproduce does for padding, beyond what the plan has: for each
// padded batch a rank creates a weight, a gradient and a momentum of zeros for every tensor that the batch lacks, and
// updates them like its own (xtuner/v1/optim/muon.py: pad_batch). Muster's executor clears its messages instead.
#pragma once

#include <cstdint>

#include "muster/plan.h"
#include "plan/catalog.h"
#include "sim/cluster.h"

namespace muster::sim {

// What the rank that creates most creates per step.
struct Padding {
  int64_t tensors = 0;  // created; each is a launch
  int64_t bytes = 0;    // of these
  int64_t ns = 0;       // for launches, zeros, momentum and apply
};

// Nothing for strategies that reproduce no such code.
Padding padding(const plan::Catalog& catalog, const Plan& plan, const Cluster& cluster);

// Bytes of the weight, the gradient and the momentum, for one element of a matrix parameter; the largest.
int64_t zero_bytes(const Problem& problem);

}  // namespace muster::sim
