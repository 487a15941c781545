// Sums over ranks by replica and by node, for telling near traffic from far.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace muster::plan {

class Tally {
 public:
  Tally(int32_t replicas, int32_t nodes) : replica_(replicas), node_(nodes) {}

  void add(int32_t replica, int32_t node, int64_t value) {
    all_ += value;
    replica_[replica] += value;
    node_[node] += value;
    if (replica_.size() > 1) both_[key(replica, node)] += value;
  }
  int64_t all() const { return all_; }
  int64_t replica(int32_t replica) const { return replica_[replica]; }
  int64_t node(int32_t node) const { return node_[node]; }
  int64_t both(int32_t replica, int32_t node) const {
    if (replica_.size() == 1) return node_[node];
    const auto at = both_.find(key(replica, node));
    return at == both_.end() ? 0 : at->second;
  }

 private:
  static uint64_t key(int32_t replica, int32_t node) {
    return static_cast<uint64_t>(replica) << 32 | static_cast<uint32_t>(node);
  }
  int64_t all_ = 0;
  std::vector<int64_t> replica_;
  std::vector<int64_t> node_;
  std::unordered_map<uint64_t, int64_t> both_;
};

}  // namespace muster::plan
