// What a rank's scratch is made of. The planner counts it and the engine allocates it, by the same rules.
//
// An arena of slots, and a workspace for one matrix (CostModel::workspace_bytes). With n waves in flight
// (Plan::in_flight) 2 n + 1 waves are under way at once: one computes, n arrive, n leave. So there are as many slots,
// or one per wave if there are fewer waves. Wave w lies in slot w % slots, and a slot is as large as the largest of its
// waves. A wave takes
// - every matrix that is assembled here, in wire dtype, each aligned; none for a matrix of which nothing travels
//   (HolderSet::stays_home), which goes through the workspace;
// - f32 sums over replicas where gradients are synchronized, in one aligned region;
// - the messages of one direction, sent and received, each aligned: messages in are freed before those out are staged.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "base/alignment.h"
#include "muster/plan.h"

namespace muster::plan {

inline constexpr int64_t kAlignment = 64;
inline constexpr int64_t kSumBytes = 4;  // of an element that is summed over replicas

inline int64_t aligned(int64_t bytes) { return base::round_up(bytes, kAlignment); }

inline size_t arena_slots(const Plan& plan) {
  return std::min(2 * static_cast<size_t>(plan.in_flight) + 1, std::max<size_t>(1, plan.waves.size()));
}

// As many waves in flight as asked for, or as there are.
inline int32_t most_in_flight(int32_t wanted, size_t waves) {
  return static_cast<int32_t>(std::min<int64_t>(wanted, std::max<int64_t>(1, static_cast<int64_t>(waves) - 1)));
}

// A rank's arena, grown wave by wave.
class Arena {
 public:
  explicit Arena(size_t slots) : slots_(slots) {}

  void add(size_t wave, int64_t bytes) { slot(wave) = std::max(slot(wave), bytes); }
  int64_t bytes() const { return std::accumulate(slots_.begin(), slots_.end(), int64_t{0}); }
  // Where a wave's part begins, once all waves were added.
  int64_t begin(size_t wave) const {
    return std::accumulate(slots_.begin(), slots_.begin() + static_cast<ptrdiff_t>(wave % slots_.size()), int64_t{0});
  }

 private:
  int64_t& slot(size_t wave) { return slots_[wave % slots_.size()]; }

  std::vector<int64_t> slots_;
};

}  // namespace muster::plan
