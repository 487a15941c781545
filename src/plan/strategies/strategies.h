// Plan builders: the global planner, and what today's systems do, as the same Plan.
#pragma once

#include "muster/plan.h"
#include "plan/catalog.h"
#include "plan/cost_model/cost_model.h"

namespace muster::plan {

// What fills rounds that are not full. kNone keeps the rounds of a strategy without its padding.
enum class Padding : uint8_t { kZeros, kNone };

// Each fills owner, wave and waves. All but build_global reproduce the rules of another system, divisibility and
// padding included; where that system has a group of ranks, here it is the ranks that hold a matrix, in all replicas.
Plan build_global(const Catalog& catalog, const CostModel& cost, const PlanOptions& options);
Plan build_per_matrix(const Catalog& catalog);
Plan build_chunked(const Catalog& catalog, Padding padding = Padding::kZeros);
// Reads the options of groups alone.
Plan build_grouped(const Catalog& catalog, const PlanOptions& options, Padding padding = Padding::kZeros);
Plan build_megabatch(const Catalog& catalog, Padding padding = Padding::kZeros);
Plan build_routed(const Catalog& catalog, Padding padding = Padding::kZeros);
Plan build_layerwise(const Catalog& catalog, Padding padding = Padding::kZeros);

// Padding and gathering multiply the bytes sent by the number of ranks. Throws InvalidArgument where sums would
// overflow.
void check_traffic(const Catalog& catalog, const Plan& plan);

}  // namespace muster::plan
