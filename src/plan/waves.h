// Waves: which matrices are exchanged and orthogonalized together.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/catalog.h"
#include "plan/cost_model.h"

namespace muster::plan {

// Nothing of the matrix ever leaves its owner.
bool stays_home(const Catalog& catalog, int32_t matrix, int32_t owner);

// A wave for every matrix, 0 to K - 1, each used; K is at most `count`. Every rank spreads its own time evenly over the
// waves, small matrices first, those that travel apart from those that stay home: the latter hide the exchanges.
std::vector<int32_t> assign_waves(const Catalog& catalog, const CostModel& cost, const std::vector<int32_t>& owner,
                                  int32_t count);

}  // namespace muster::plan
