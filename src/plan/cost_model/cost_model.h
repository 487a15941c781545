// What each class of matrices costs to hold and to own, in nanoseconds, from a cost table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "muster/cost.h"
#include "plan/catalog.h"

namespace muster::plan {

// Bytes of memory traffic for one element.
inline constexpr int64_t kMomentumBytes = 14;  // read gradient and momentum, write momentum and the wire copy
inline constexpr int64_t kApplyBytes = 10;     // read the update and the weight, write the weight
inline constexpr int64_t kAdamWBytes = 28;     // read gradient, two moments and the weight, write the last three
inline constexpr int64_t kLionBytes = 20;
inline constexpr int64_t kNormalizeBytes = 8;  // mean squares of the orthogonalized matrix, then its scaling

// One rank's time, the exchanges by direction: a link carries both at once.
struct Load {
  int64_t compute = 0;
  int64_t start = 0;  // messages and batches
  int64_t in_send = 0;
  int64_t in_receive = 0;
  int64_t out_send = 0;
  int64_t out_receive = 0;

  // `exchange_percent` weighs the exchanges against the rest.
  int64_t total(int64_t exchange_percent = 100) const {
    return compute + start + (std::max(in_send, in_receive) + std::max(out_send, out_receive)) * exchange_percent / 100;
  }
  Load& operator+=(const Load& other);
  Load& operator-=(const Load& other);
  Load operator*(int64_t n) const;
};

class CostModel {
 public:
  // Catalog and table are kept by reference. `repeated` says for which classes there is an owner in each replica, whose
  // replicas then cost what they would cost alone; empty: for none.
  CostModel(const Catalog& catalog, const CostTable& table, std::vector<bool> repeated = {});

  const CostTable& table() const { return table_; }
  int32_t node(int32_t rank) const { return rank / table_.ranks_per_node; }
  bool in_each_replica(int32_t c) const { return !repeated_.empty() && repeated_[c]; }

  int64_t orthogonalize_ns(int32_t c) const { return orthogonalize_ns_[c]; }
  int64_t normalize_ns(int32_t c) const { return normalize_ns_[c]; }
  int64_t memory_ns(int64_t bytes) const { return transfer_ns(bytes, table_.memory_mbps); }
  int64_t link_ns(int64_t bytes, bool same_node) const {
    return transfer_ns(bytes, same_node ? table_.intra_node_mbps : table_.inter_node_mbps);
  }
  int64_t elementwise_bytes(Algorithm algorithm) const;

  // What a rank pays for a matrix it holds part of, as if its owner were any other holder (replicas share what only one
  // of them does); what a single holder pays if the matrix leaves it. `holder` is an element of the class's holder set.
  Load hold(int32_t c, const Holder& holder) const;
  // What an owner pays beyond that; for a holder, less what it need not send and receive.
  Load own(int32_t c, int32_t rank) const;

  // Elementwise work that a matrix brings its owner: the momentum of summed gradients, whole new weights.
  int64_t owner_elementwise_ns(const MatrixClass& c) const;
  // Elementwise parameters that are held once are updated where they are; a rank's time for them.
  std::vector<int64_t> held_elementwise_ns() const;

  // Bytes that orthogonalizing one matrix takes besides what is exchanged.
  int64_t workspace_bytes(const Matrix& matrix) const;

 private:
  static int64_t transfer_ns(int64_t bytes, int64_t mbps) {
    return bytes / mbps * 1000 + bytes % mbps * 1000 / mbps;  // in this order nothing overflows
  }
  // What a node holds of one replica of a matrix.
  struct NodeShare {
    int32_t node = 0;
    int32_t replica = 0;
    int64_t elements = 0;
  };
  struct Near {
    int64_t in = 0;   // elements of the replica that sends, on a rank's node
    int64_t out = 0;  // elements of all replicas that one owner serves there
  };
  Near near(int32_t c, int32_t rank) const;
  // Replicas that one owner serves.
  int32_t served(int32_t c) const { return in_each_replica(c) ? 1 : catalog_.holders_of_class(c).replicas; }

  const Catalog& catalog_;
  const CostTable& table_;
  const std::vector<bool> repeated_;
  std::vector<int64_t> orthogonalize_ns_;
  std::vector<int64_t> normalize_ns_;
  std::vector<std::vector<NodeShare>> nodes_;  // a holder set; ascending
};

}  // namespace muster::plan
