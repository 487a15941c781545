// What every rank does in one wave of a plan, computed from counts of matrices per class: no piece is listed.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "muster/plan.h"
#include "plan/catalog.h"
#include "plan/cost_model/cost_model.h"
#include "plan/cost_model/node_sums.h"
#include "plan/cost_model/wave_traffic.h"

namespace muster::plan {

// What one rank does in a wave besides exchanging, in the order in which an executor does it.
struct RankWork {
  int64_t momentum = 0;        // elements whose momentum the rank keeps
  int64_t pack_ns = 0;         // updating momentum of what the rank holds, into messages
  int64_t elementwise_ns = 0;  // AdamW and Lion
  int64_t home_ns = 0;         // all work on matrices that never travel
  int64_t owned_ns = 0;        // orthogonalizing what arrived, with all that its owner does for it
  int64_t apply_ns = 0;
  int32_t matrices = 0;  // orthogonalized, zero matrices included
  int32_t shapes = 0;    // different ones among them
  int32_t home_batches = 0;
  int32_t owned_batches = 0;
  int64_t zeros = 0;      // elements of padding that this rank sends like its own
  int64_t elements = 0;   // updated for all replicas
  int64_t assembled = 0;  // bytes of matrices assembled here
  int64_t sums = 0;       // elements summed over replicas
  int64_t workspace = 0;  // bytes, for the largest matrix
  int64_t lines = 0;      // of NorMuon's statistics
  int64_t repeated = 0;   // bytes sent that are already staged for another replica

  int64_t compute_ns(const CostTable& table) const {
    return pack_ns + elementwise_ns + home_ns + owned_ns + apply_ns + shapes * table.batch_ns;
  }
};

// Bytes that a wave takes of a rank's arena (plan/scratch.h).
int64_t wave_bytes(const RankWork& work, const Traffic& in, const Traffic& out);

// Counts one wave at a time, in any order.
class WaveWork {
 public:
  // All are kept by reference.
  WaveWork(const Catalog& catalog, const CostModel& cost, const Plan& plan);

  void count(int32_t wave);

  // What the last wave that was counted takes.
  const WaveTraffic& in() const { return in_; }
  const WaveTraffic& out() const { return out_; }
  const RankWork& at(int32_t rank) const { return ranks_[rank]; }
  int32_t matrices() const { return static_cast<int32_t>(by_wave_[wave_].size()); }
  int32_t owners() const { return owners_; }

 private:
  // Matrices of one class, by owner.
  struct Owned {
    int64_t real = 0;
    int64_t zero = 0;
  };
  using Batch = std::map<int32_t, Owned>;
  // A class, and whether each replica has an owner.
  struct Key {
    int32_t c = 0;
    bool each = false;
    auto operator<=>(const Key&) const = default;
  };
  // What the exchanges of one batch with owners are computed from.
  struct OwnedBatch {
    Key key;
    const MatrixClass& c;
    const HolderSet& set;
    bool padded;
    NodeSums elements;  // per matrix, as sent by each holder
    NodeSums real;      // matrices, by the replica that sends to their owner
    NodeSums zero;

    int64_t sent(const Holder& h) const { return padded ? set.largest : h.elements; }
    // Owners gather from all replicas or from one, and return to all or to one.
    bool all_in() const { return c.all_replicas; }
    bool all_out() const { return !key.each; }
    NearFar in(const NodeSums& sums, int32_t replica, int32_t node) const {
      return all_in() ? sums.of_all(node) : sums.of_replica(replica, node);
    }
    NearFar out(const NodeSums& sums, int32_t replica, int32_t node) const {
      return all_out() ? sums.of_all(node) : sums.of_replica(replica, node);
    }
  };
  struct Owner {
    int32_t rank = 0;
    int32_t replica = 0;  // that sends to it
  };
  // A batch that a rank starts.
  struct Start {
    int32_t rank = 0;
    int32_t shape = 0;
    bool home = false;
    auto operator<=>(const Start&) const = default;
  };

  std::map<Key, Batch> batches() const;
  Batch with_counterparts(int32_t c, const Batch& batch) const;
  void note_sent(const std::map<Key, Batch>& batches);
  void add_repeated(int32_t rank, Distributions distributions, int64_t bytes);

  void add_owned(Key key, const Batch& batch, bool padded);
  void add_owner(const OwnedBatch& batch, int32_t rank, const Owned& owned);
  void add_holder(const OwnedBatch& batch, const Holder& holder, const Owned& own);
  void add_pairs(const HolderSet& holders, const std::vector<Owner>& owners, bool all_in, bool all_out);
  void add_gathered(Key key, const Batch& batch, bool reduce);
  void add_shares();

  void add_owned_lines(Key key, const Batch& batch);
  void add_gathered_lines(int32_t index, const Batch& batch);
  void assemble_lines(int32_t rank, const MatrixClass& c, int64_t count, bool home);

  void assemble(int32_t rank, const MatrixClass& c, const Owned& owned);
  void orthogonalize(int32_t rank, int32_t index, int64_t count, bool home);
  void add_momentum(int32_t rank, int64_t elements, int64_t at_home);
  void add_apply(int32_t rank, int64_t elements, int64_t at_home);
  void count_batches();
  int64_t held_elementwise_ns(int32_t rank) const;

  const Catalog& catalog_;
  const CostModel& cost_;
  const Plan& plan_;
  const int32_t count_;  // of ranks
  const int32_t nodes_;
  std::vector<std::vector<int32_t>> by_wave_;  // matrices
  const std::vector<int64_t> elementwise_ns_;  // per rank
  std::vector<Distributions> family_distributions_;
  int32_t wave_ = 0;
  int32_t owners_ = 0;
  WaveTraffic in_;
  WaveTraffic out_;
  std::vector<RankWork> ranks_;
  std::vector<Distributions> sent_;  // per rank, of what it sends out
  std::vector<Start> started_;
};

}  // namespace muster::plan
