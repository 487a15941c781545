// How long each rank's part in an exchange takes on the links of a cluster.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/cost_model/wave_work.h"
#include "sim/cluster.h"

namespace muster::sim {

// By rank; 0 for one that takes no part. A link carries both directions at once, and the links within a node and the
// adapters work side by side. Adapters that several ranks share take the bytes of all of them.
std::vector<int64_t> exchange_ns(const Cluster& cluster, const plan::WaveTraffic& flow, int32_t ranks);

// Bytes that all ranks together can send out of their nodes in 1e-6 seconds.
double far_capacity(const Cluster& cluster, int32_t ranks);

}  // namespace muster::sim
