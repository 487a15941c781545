// What happened in one step, on every rank.
#pragma once

#include <cstdint>
#include <vector>

#include "muster/communicator.h"
#include "muster/optimizer.h"

namespace muster::run {

// One rank's step, by its own clock.
struct Timeline {
  int64_t begin_ns = 0;  // all ranks had left a barrier
  int64_t end_ns = 0;
  std::vector<TraceEvent> events;
};

// Those of all ranks, on rank 0. All ranks call it.
std::vector<Timeline> gather_timelines(Communicator& communicator, const Timeline& mine);

}  // namespace muster::run
