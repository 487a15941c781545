// Spans of time laid on tracks without overlap.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "muster/optimizer.h"

namespace muster::report {

// By their beginnings; of two that begin together, the longer one is around the other.
std::vector<const TraceEvent*> in_order(std::span<const TraceEvent> events);

// Takes spans in order of their beginnings and gives each the first lane that is free by then.
class Lanes {
 public:
  size_t place(int64_t begin_ns, int64_t end_ns) {
    size_t lane = 0;
    while (lane < busy_until_.size() && busy_until_[lane] > begin_ns) ++lane;
    if (lane == busy_until_.size()) busy_until_.push_back(0);
    busy_until_[lane] = end_ns;
    return lane;
  }
  size_t count() const { return busy_until_.size(); }

 private:
  std::vector<int64_t> busy_until_;
};

}  // namespace muster::report
