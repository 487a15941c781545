#include "sim/network.h"

#include <algorithm>
#include <array>

namespace muster::sim {
namespace {

// Rounded up, so that no sum of parts takes less than the whole.
int64_t transfer_ns(int64_t bytes, int64_t mbps) {
  return bytes / mbps * 1000 + (bytes % mbps * 1000 + mbps - 1) / mbps;
}

}  // namespace

std::vector<int64_t> exchange_ns(const Cluster& cluster, const plan::WaveTraffic& flow, int32_t ranks) {
  const CostTable& cost = cluster.cost;
  const int32_t size = cost.ranks_per_node;
  const int32_t nics = std::min(cluster.nics_per_node, size);
  const int64_t nic_mbps = cluster.nic_mbps * (cluster.nics_per_node / nics);
  const auto nic_of = [&](int32_t rank) {
    return static_cast<size_t>(int64_t{rank / size} * nics + int64_t{rank % size} * nics / size);
  };
  std::vector<std::array<int64_t, 2>> loads(nic_of(ranks - 1) + 1);  // sent and received
  for (int32_t r = 0; r < ranks; ++r) {
    loads[nic_of(r)][0] += flow.at(r).sent_far;
    loads[nic_of(r)][1] += flow.at(r).received_far;
  }
  std::vector<int64_t> ns(ranks);
  for (int32_t r = 0; r < ranks; ++r) {
    const plan::Traffic& t = flow.at(r);
    if (t.sent() + t.received() == 0) continue;
    const int64_t near = transfer_ns(std::max(t.sent_near, t.received_near), cost.intra_node_mbps);
    const auto [sent, received] = loads[nic_of(r)];
    const bool leaves = t.sent_far + t.received_far > 0;
    const int64_t far = leaves ? transfer_ns(std::max(sent, received), nic_mbps) : 0;
    ns[r] = cost.exchange_ns + cost.message_ns * std::max(t.messages, t.messages_received) + std::max(near, far);
  }
  return ns;
}

double far_capacity(const Cluster& cluster, int32_t ranks) {
  const int32_t size = cluster.cost.ranks_per_node;
  const int32_t nics = std::min(cluster.nics_per_node, size);
  const int64_t used = std::min<int64_t>(ranks, int64_t{(ranks + size - 1) / size} * nics);
  return static_cast<double>(used) * static_cast<double>(cluster.nic_mbps * (cluster.nics_per_node / nics));
}

}  // namespace muster::sim
