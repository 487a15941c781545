// Sums over ranks, by replica and by node, that tell traffic within a node (near) from traffic between nodes (far).
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace muster::plan {

struct NearFar {
  int64_t near = 0;
  int64_t far = 0;

  int64_t sum() const { return near + far; }
  NearFar operator+(NearFar other) const { return {near + other.near, far + other.far}; }
  NearFar operator*(int64_t n) const { return {near * n, far * n}; }
  // Without what the rank has or keeps itself.
  NearFar without(int64_t own) const { return {near - own, far}; }
};

class NodeSums {
 public:
  NodeSums(int32_t replicas, int32_t nodes) : replica_(replicas), node_(nodes) {}

  void add(int32_t replica, int32_t node, int64_t value) {
    all_ += value;
    replica_[replica] += value;
    node_[node] += value;
    if (replica_.size() > 1) both_[key(replica, node)] += value;
  }
  int64_t all() const { return all_; }
  int64_t replica(int32_t replica) const { return replica_[replica]; }

  // As seen from a node: of all replicas, or of one.
  NearFar of_all(int32_t node) const { return {node_[node], all_ - node_[node]}; }
  NearFar of_replica(int32_t replica, int32_t node) const {
    const int64_t near = both(replica, node);
    return {near, replica_[replica] - near};
  }

 private:
  static uint64_t key(int32_t replica, int32_t node) {
    return static_cast<uint64_t>(replica) << 32 | static_cast<uint32_t>(node);
  }
  int64_t both(int32_t replica, int32_t node) const {
    if (replica_.size() == 1) return node_[node];
    const auto at = both_.find(key(replica, node));
    return at == both_.end() ? 0 : at->second;
  }

  int64_t all_ = 0;
  std::vector<int64_t> replica_;
  std::vector<int64_t> node_;
  std::unordered_map<uint64_t, int64_t> both_;
};

}  // namespace muster::plan
