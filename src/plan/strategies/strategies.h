// Plan builders: the global planner, and what today's systems do, as the same Plan.
#pragma once

#include "muster/plan.h"
#include "plan/catalog.h"
#include "plan/cost_model/cost_model.h"

namespace muster::plan {

// What fills rounds that are not full: zero matrices, or for those who want the rounds alone, nothing.
enum class Padding : uint8_t { kZeros, kNone };

// Each fills owner, wave, waves, families and shares. The peers' rules are theirs, divisibility and padding included;
// a group of ranks is always the ranks that hold a matrix, replicas among them (peers recompute on each replica).
Plan build_global(const Catalog& catalog, const CostModel& cost, const PlanOptions& options);
Plan build_per_matrix(const Catalog& catalog);
Plan build_chunked(const Catalog& catalog, Padding padding = Padding::kZeros);
Plan build_grouped(const Catalog& catalog, Padding padding = Padding::kZeros);
Plan build_megabatch(const Catalog& catalog, Padding padding = Padding::kZeros);
Plan build_routed(const Catalog& catalog, Padding padding = Padding::kZeros);
Plan build_layerwise(const Catalog& catalog, Padding padding = Padding::kZeros);

// Padding and gathering multiply what is sent by the ranks. Throws InvalidArgument where sums of it would not fit.
void check_traffic(const Catalog& catalog, const Plan& plan);

}  // namespace muster::plan
