// What each rank holds of the flat buffer of weights, as one buffer of its own; and the two exchanges of a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "muster/communicator.h"
#include "muster/problem.h"
#include "run/rows.h"
#include "train/model.h"

namespace muster::train {

struct Shard {
  std::vector<run::Row> rows;    // `first` in the whole flat buffer, `offset` in the rank's
  std::vector<int64_t> offsets;  // of each tensor in the rank's; one more: the end
  int32_t replica = 0;           // ranks of one replica hold everything once

  int64_t elements() const { return offsets.back(); }
  int64_t elements(size_t tensor) const { return offsets[tensor + 1] - offsets[tensor]; }
};

std::vector<Shard> make_shards(const Problem& problem, const WeightMap& map);  // one a rank

// The shards of a replica, put together to the whole weights on each of its ranks, as f32.
class WeightGather {
 public:
  // All are kept by reference. The dtype is f32 or bf16.
  WeightGather(const std::vector<Shard>& shards, Dtype dtype, Communicator& communicator);
  void run(std::span<const std::byte> own, std::span<float> whole);

 private:
  const std::vector<Shard>& shards_;
  Dtype dtype_;
  Communicator& communicator_;
  std::vector<std::vector<std::byte>> received_;  // by rank; nothing of other replicas
};

// Which slots a rank computes: about equally many, or none.
struct SlotRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
};
SlotRange slots_of(int64_t slots, int32_t rank, int32_t ranks);

// Sums gradients over the slots in the order of the slots, in f32: on every rank its shard of the sum, with the same
// bits however many ranks there are. Each rank receives its shard of every slot for it.
class SlotSum {
 public:
  // The shards and the communicator are kept by reference.
  SlotSum(const std::vector<Shard>& shards, int64_t slots, int64_t elements, Communicator& communicator);

  SlotRange own() const { return own_; }
  std::span<float> gradients(int64_t slot);  // of an own one: the whole flat buffer, to be filled
  void run(std::span<float> sum);            // this rank's shard

 private:
  const std::vector<Shard>& shards_;
  int64_t slots_;
  Communicator& communicator_;
  SlotRange own_;
  std::vector<std::vector<float>> gradients_;  // of the own slots
  std::vector<std::vector<float>> sent_;       // by rank: its shard of each own slot
  std::vector<std::vector<float>> received_;   // by rank: this one's shard of each of its slots
};

}  // namespace muster::train
