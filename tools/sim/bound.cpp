#include "sim/bound.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "sim/network.h"

namespace muster::sim {
namespace {

using plan::Catalog;
using plan::CostModel;
using plan::Holder;
using plan::HolderSet;
using plan::MatrixClass;

// Bytes that must be received for one matrix, in and out.
struct Bytes {
  double all = 0;
  double far = 0;  // by another node than they come from
};

Bytes least(const Bytes& a, const Bytes& b) { return {std::min(a.all, b.all), std::min(a.far, b.far)}; }

// The most that one rank, or one node, holds: of a replica, and of all of them.
struct Fullest {
  std::vector<int64_t> of_replica;
  int64_t of_all = 0;
};

template <typename PlaceOf>
Fullest fullest(const HolderSet& set, PlaceOf place_of) {
  std::map<std::pair<int32_t, int32_t>, int64_t> held;
  std::map<int32_t, int64_t> all;
  for (const Holder& h : set.holders) {
    held[{place_of(h), h.replica}] += h.elements;
    all[place_of(h)] += h.elements;
  }
  Fullest most{std::vector<int64_t>(static_cast<size_t>(set.replicas)), 0};
  for (const auto& [key, elements] : held) {
    int64_t& replica = most.of_replica[static_cast<size_t>(key.second)];
    replica = std::max(replica, elements);
  }
  for (const auto& [place, elements] : all) most.of_all = std::max(most.of_all, elements);
  return most;
}

// What the owner, or its node, lacks on the way in, and the holders on the way back.
double with_one_owner(const MatrixClass& c, const HolderSet& set, const Fullest& most) {
  const int64_t replica = c.matrix.elements();
  const int64_t all = replica * set.replicas;
  const int64_t lacks =
      c.all_replicas ? all - most.of_all : replica - *std::max_element(most.of_replica.begin(), most.of_replica.end());
  return static_cast<double>(lacks) * static_cast<double>(c.in_bytes) +
         static_cast<double>(all - most.of_all) * static_cast<double>(c.out_bytes);
}

double with_one_in_each_replica(const MatrixClass& c, const Fullest& most) {
  double bytes = 0;
  for (const int64_t held : most.of_replica) {
    bytes += static_cast<double>(c.matrix.elements() - held) * static_cast<double>(c.in_bytes + c.out_bytes);
  }
  return bytes;
}

// Whoever gathers a matrix on all of its holders receives no less than one of them would, in and out.
Bytes must_move(const CostModel& cost, const MatrixClass& c, const HolderSet& set) {
  const Fullest rank = fullest(set, [](const Holder& h) { return h.rank; });
  const Fullest node = fullest(set, [&](const Holder& h) { return cost.node(h.rank); });
  const Bytes one{with_one_owner(c, set, rank), with_one_owner(c, set, node)};
  if (c.all_replicas || set.replicas == 1) return one;
  return least(one, {with_one_in_each_replica(c, rank), with_one_in_each_replica(c, node)});
}

// All ranks together, for one matrix.
int64_t compute_ns(const CostModel& cost, int32_t index, const MatrixClass& c, const HolderSet& set) {
  int64_t ns = cost.orthogonalize_ns(index) + cost.normalize_ns(index) + cost.owner_elementwise_ns(c);
  for (const Holder& h : set.holders) {
    if (!c.all_replicas && h.replica == 0) ns += cost.memory_ns(h.elements * plan::kMomentumBytes);
    if (!c.weights_back) ns += cost.memory_ns(h.elements * plan::kApplyBytes);
  }
  return ns;
}

// All ranks together: those held once, and of the others one replica.
double elementwise_ns(const Catalog& catalog, const CostModel& cost) {
  double ns = 0;
  const Problem& problem = catalog.problem();
  for (const int64_t held : cost.held_elementwise_ns()) ns += static_cast<double>(held);
  for (int32_t p = 0; p < static_cast<int32_t>(problem.parameters.size()); ++p) {
    const Parameter& parameter = problem.parameters[p];
    if (is_matrix_algorithm(parameter.algorithm) || catalog.partition(p).replicas() == 1) continue;
    const int64_t bytes = element_count(parameter.shape) * cost.elementwise_bytes(parameter.algorithm);
    ns += static_cast<double>(cost.memory_ns(bytes));
  }
  return ns;
}

// Gathered by whoever has most of it, and orthogonalized there.
double alone_ns(const Catalog& catalog, const CostModel& cost, int32_t index, const Cluster& cluster) {
  const MatrixClass& c = catalog.classes()[index];
  const HolderSet& set = catalog.holder_set(c);
  const CostTable& table = cluster.cost;
  double ns = static_cast<double>(cost.orthogonalize_ns(index) + cost.normalize_ns(index) + table.batch_ns);
  const int64_t needed = c.matrix.elements() * (c.all_replicas ? set.replicas : 1);
  if (needed > set.largest) {
    const double mbps = static_cast<double>(table.intra_node_mbps) + far_capacity(cluster, 1);
    ns += static_cast<double>(table.exchange_ns + table.message_ns) +
          1e3 * static_cast<double>((needed - set.largest) * c.in_bytes) / mbps;
  }
  return ns;
}

}  // namespace

int64_t bound_ns(const Catalog& catalog, const CostModel& cost, const Cluster& cluster) {
  const int32_t ranks = catalog.problem().ranks;
  std::vector<int64_t> count(catalog.classes().size());
  for (int32_t j = 0; j < catalog.matrix_count(); ++j) ++count[catalog.class_of(j)];
  double compute = elementwise_ns(catalog, cost);
  double longest = 0;
  Bytes bytes;
  for (int32_t index = 0; index < static_cast<int32_t>(count.size()); ++index) {
    const MatrixClass& c = catalog.classes()[index];
    const HolderSet& set = catalog.holder_set(c);
    const auto matrices = static_cast<double>(count[index]);
    const Bytes each = must_move(cost, c, set);
    compute += matrices * static_cast<double>(compute_ns(cost, index, c, set));
    bytes.all += matrices * each.all;
    bytes.far += matrices * each.far;
    longest = std::max(longest, alone_ns(catalog, cost, index, cluster));
  }
  const double nic_mbps = far_capacity(cluster, 1);
  const double far_ns = 1e3 * bytes.far / nic_mbps;
  const double links_ns = 1e3 * bytes.all / (nic_mbps + static_cast<double>(cluster.cost.intra_node_mbps));
  const double a = compute / ranks;
  const double b = std::max(far_ns, links_ns) / ranks;
  const double hidden = std::min(a, b) * static_cast<double>(cluster.cost.overlap_percent) / 100;
  return static_cast<int64_t>(std::max({a + b - hidden, 1e3 * bytes.far / far_capacity(cluster, ranks), longest}));
}

}  // namespace muster::sim
