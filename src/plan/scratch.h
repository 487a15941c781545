// What a rank's scratch is made of. The planner counts it and the engine allocates it, by the same rules.
//
// An arena of three slots, and a workspace for one matrix (CostModel::workspace_bytes). Wave w lies in slot w % 3, and
// a slot is as large as the largest of its waves. A wave takes
// - every matrix that is assembled here, in wire dtype, each aligned; none for a matrix of which nothing travels
//   (HolderSet::stays_home), which goes through the workspace;
// - f32 sums over replicas where gradients are synchronized, in one aligned region;
// - the messages of one direction, sent and received, each aligned: messages in are freed before those out are staged.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "base/alignment.h"

namespace muster::plan {

inline constexpr size_t kSlots = 3;  // waves in flight: one computes, the next arrives, the last leaves
inline constexpr int64_t kAlignment = 64;
inline constexpr int64_t kSumBytes = 4;  // of an element that is summed over replicas

inline int64_t aligned(int64_t bytes) { return base::round_up(bytes, kAlignment); }

// A rank's arena, grown wave by wave.
class Arena {
 public:
  void add(size_t wave, int64_t bytes) { slots_[wave % kSlots] = std::max(slots_[wave % kSlots], bytes); }
  int64_t bytes() const { return std::accumulate(slots_.begin(), slots_.end(), int64_t{0}); }

 private:
  std::array<int64_t, kSlots> slots_{};
};

}  // namespace muster::plan
