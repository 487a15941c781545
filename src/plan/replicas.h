// Matrices that every replica orthogonalizes for itself, instead of one owner for all.
//
// That costs computation, and memory for momentum in every replica; it saves sending updates from one replica to the
// others. Not where replicas average their gradients (grad_sync).
#pragma once

#include <cstdint>
#include <vector>

#include "muster/plan.h"
#include "plan/catalog.h"

namespace muster::plan {

inline bool in_each_replica(const Plan& plan, int32_t matrix) {
  return !plan.each_replica.empty() && plan.each_replica[matrix];
}

// The rank that orthogonalizes a matrix for a rank that holds some of it.
int32_t owner_for(const Catalog& catalog, const Plan& plan, int32_t matrix, int32_t rank);
// The same of a matrix of zeros, which each replica has where the matrix that it is like is in each.
int32_t owner_for(const Catalog& catalog, const Plan& plan, const ZeroMatrix& zero, int32_t rank);

// True if each replica can orthogonalize the matrix for itself. A rule need not be deterministic, so it has one owner.
bool can_repeat(const Catalog& catalog, const MatrixClass& c);

// By class, those of the plan that can be repeated (a peer's plan may repeat others), and those for which the
// computation that all replicas together repeat takes no longer than `exchange_percent` of what is saved of their
// exchanges.
std::vector<bool> repeated_classes(const Catalog& catalog, const Plan& plan);
std::vector<bool> worth_repeating(const Catalog& catalog, const CostTable& table, int64_t exchange_percent);

}  // namespace muster::plan
