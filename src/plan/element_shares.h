// Elementwise parameters on replicated storage: who updates which elements.
#pragma once

#include <cstdint>
#include <vector>

#include "muster/plan.h"
#include "plan/catalog.h"
#include "plan/cost_model/cost_model.h"

namespace muster::plan {

// Fills plan.families and plan.shares so that the ranks' totals level out. `totals` (one per rank) grows by what each
// rank gets. `exchange_percent` weighs bytes against computation, in `totals` too.
void share_elements(const Catalog& catalog, const CostModel& cost, int64_t exchange_percent,
                    std::vector<int64_t>& totals, Plan& plan);

// Adds what each rank's part of a share costs it.
void add_share_ns(const Problem& problem, const CostModel& cost, const std::vector<int32_t>& family,
                  const ElementShare& share, std::vector<int64_t>& totals);

// The part of the stream that ranks[i] of a share updates in one wave.
struct StreamRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
};
StreamRange share_in_wave(const Plan& plan, const ElementShare& share, size_t i, int32_t wave);

// Bytes of an element of a family on its way to its updater (0 unless gradients are synchronized) and back.
int64_t share_in_bytes(const Problem& problem, const std::vector<int32_t>& family);
int64_t share_out_bytes(const Problem& problem, const std::vector<int32_t>& family);

}  // namespace muster::plan
