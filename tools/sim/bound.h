// What no schedule can beat on a cluster, whoever owns what in however many waves. The largest of
// - every matrix orthogonalized once, every element updated once, shared out evenly; beside the bytes that the mean
// rank
//   must receive, of which as much is hidden as the cost table allows;
// - the bytes that must leave their nodes, over all adapters;
// - the matrix that takes longest: gathered, if nobody holds it whole, and orthogonalized.
#pragma once

#include <cstdint>

#include "plan/catalog.h"
#include "plan/cost_model/cost_model.h"
#include "sim/cluster.h"

namespace muster::sim {

// `cost` is for the cluster's table, with one owner for all replicas of everything.
int64_t bound_ns(const plan::Catalog& catalog, const plan::CostModel& cost, const Cluster& cluster);

}  // namespace muster::sim
