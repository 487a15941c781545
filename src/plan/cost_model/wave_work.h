// What every rank does in one wave of a plan, from counts of matrices a class: no piece is listed.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "muster/plan.h"
#include "plan/catalog.h"
#include "plan/cost_model/cost_model.h"
#include "plan/messages.h"

namespace muster::plan {

// One rank's part in an exchange. Near is within a node.
struct Traffic {
  int64_t sent_near = 0;  // bytes
  int64_t sent_far = 0;
  int64_t received_near = 0;
  int64_t received_far = 0;
  int64_t sent_ns = 0;  // on the links of the cost table
  int64_t received_ns = 0;
  int64_t messages = 0;  // sent
  int64_t messages_received = 0;

  int64_t sent() const { return sent_near + sent_far; }
  int64_t received() const { return received_near + received_far; }
};

// One direction of one wave: what every rank sends and receives.
class Flow {
 public:
  Flow(const CostModel& cost, int32_t ranks) : pairs(ranks), cost_(cost), ranks_(ranks) {}

  void send(int32_t rank, int64_t near, int64_t far);
  void receive(int32_t rank, int64_t near, int64_t far);
  void clear();
  void count_messages();

  const Traffic& at(int32_t rank) const { return ranks_[rank]; }
  int64_t bytes() const;  // that moved

  MessageCounter pairs;
  int64_t padding = 0;

 private:
  const CostModel& cost_;
  std::vector<Traffic> ranks_;
};

// What a rank does in a wave beside exchanging, in the order in which an executor does it.
struct Activity {
  int64_t momentum = 0;        // elements of which the rank keeps it
  int64_t pack_ns = 0;         // momentum of what the rank holds, into messages
  int64_t elementwise_ns = 0;  // AdamW and Lion
  int64_t home_ns = 0;         // orthogonalizing what never travels
  int64_t owned_ns = 0;        // and what arrived, with all that its owner does for it
  int64_t apply_ns = 0;
  int32_t matrices = 0;  // orthogonalized, zero matrices included
  int32_t shapes = 0;    // different ones among them
  int32_t home_batches = 0;
  int32_t owned_batches = 0;
  int64_t zeros = 0;      // elements of this rank in padding that it sends like its own
  int64_t elements = 0;   // updated for all replicas
  int64_t assembled = 0;  // bytes of matrices put together here
  int64_t sums = 0;       // elements summed over replicas
  int64_t workspace = 0;  // bytes, for the largest matrix
  int64_t lines = 0;      // of NorMuon's statistics
  int64_t repeated = 0;   // bytes that go out in messages that are staged for another replica already

  int64_t compute_ns(const CostTable& table) const {
    return pack_ns + elementwise_ns + home_ns + owned_ns + apply_ns + shapes * table.batch_ns;
  }
};

// What a wave takes of a rank's arena (scratch.h).
int64_t wave_bytes(const Activity& activity, const Traffic& in, const Traffic& out);

// Counts wave after wave, in any order.
class WaveCounter {
 public:
  // All are kept by reference.
  WaveCounter(const Catalog& catalog, const CostModel& cost, const Plan& plan);

  void count(int32_t wave);

  // Of the wave that was counted last.
  const Flow& in() const { return in_; }
  const Flow& out() const { return out_; }
  const Activity& at(int32_t rank) const { return ranks_[rank]; }
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
  // A batch that a rank starts.
  struct Start {
    int32_t rank = 0;
    int32_t shape = 0;
    bool home = false;
    auto operator<=>(const Start&) const = default;
  };

  std::map<Key, Batch> batches() const;
  Batch with_counterparts(int32_t c, const Batch& batch) const;
  void note_spreads(const std::map<Key, Batch>& batches);
  void send_out(int32_t rank, Spreads spreads, int64_t bytes, int64_t distinct);
  void add_owned(Key key, const Batch& batch, bool padded);
  void add_gathered(int32_t index, const Batch& batch, bool reduce);
  void add_owned_lines(Key key, const Batch& batch);
  void add_gathered_lines(int32_t index, const Batch& batch);
  void assemble_lines(int32_t rank, const MatrixClass& c, int64_t count, bool home);
  void add_shares();
  void assemble(int32_t rank, const MatrixClass& c, const Owned& owned);
  void orthogonalize(int32_t rank, int32_t index, int64_t count, bool home);
  void add_momentum(int32_t rank, int64_t elements, int64_t at_home);
  void add_apply(int32_t rank, int64_t elements, int64_t at_home);
  void count_batches();
  int64_t held_elementwise_ns(int32_t rank) const;

  const Catalog& catalog_;
  const CostModel& cost_;
  const Plan& plan_;
  const int32_t count_;
  const int32_t nodes_;
  std::vector<std::vector<int32_t>> by_wave_;
  const std::vector<int64_t> elementwise_ns_;
  std::vector<Spreads> family_spreads_;
  int32_t wave_ = 0;
  int32_t owners_ = 0;
  Flow in_;
  Flow out_;
  std::vector<Activity> ranks_;
  std::vector<Spreads> sends_;  // a rank, of what goes out
  std::vector<Start> started_;
};

}  // namespace muster::plan
