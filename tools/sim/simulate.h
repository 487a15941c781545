// Replays a plan on a modelled cluster: what one step takes there, and how near that is to the best possible.
//
// Every rank has a compute stream, on which it makes the calls of a step in the executor's order, and one for
// exchanges, which it posts from there and waits for there. An exchange begins when the last of the ranks that it
// connects is ready, and ends for all of them when the slowest is through. See docs/explanation/scale.md for what the
// model leaves out.
#pragma once

#include <cstdint>

#include "muster/plan.h"
#include "sim/cluster.h"
#include "sim/padding.h"
#include "sim/timeline.h"

namespace muster::sim {

enum class Keep : uint8_t { kTotals, kTimeline };

struct Simulation {
  int64_t step_ns = 0;
  int64_t bound_ns = 0;         // no schedule takes less on this cluster: sim/bound.h
  int64_t compute_ns = 0;       // of the compute stream of the busiest rank
  int64_t exposed_comm_ns = 0;  // what the step takes beyond that
  int64_t exchange_ns = 0;      // of the exchange stream of the busiest rank, had it been alone
  int64_t bytes_sent = 0;       // by all ranks
  int64_t messages = 0;
  int64_t scratch_bytes_max = 0;
  int64_t memory_bytes_max = 0;  // weights, gradients, state and scratch: sim/memory.h
  Padding padding;               // what the reproduced code spends on it, which the step does not include
  bool fits = true;              // that, in what a rank of the cluster has
  Timeline timeline;             // if it was to be kept
};

// Throws InvalidArgument for a bad problem or a plan that is not of it.
Simulation simulate(const Problem& problem, const Plan& plan, const Cluster& cluster, Keep keep = Keep::kTotals);

}  // namespace muster::sim
