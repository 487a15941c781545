// Global ownership: one owner for every matrix of every shape, mesh and group, so that the slowest rank is fastest.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/catalog.h"
#include "plan/cost_model/cost_model.h"

namespace muster::plan {

// An owner for every matrix. Longest first to the least loaded of the ranks that hold it whole, or if no rank does, of
// those that hold some of it; then moves and swaps around the slowest rank. A matrix leaves its holders only where
// that relieves a rank well above the mean. `exchange_percent` weighs bytes and messages against computation. Where
// `cost` has an owner in each replica, the one of the first is named, and stays where it came first.
// Deterministic: ties go to the lower class, the lower rank, the lower matrix.
std::vector<int32_t> assign_owners(const Catalog& catalog, const CostModel& cost, int64_t exchange_percent);

}  // namespace muster::plan
