// What a rank carries from step to step, and which elements of which state tensors that is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/program/strided_block.h"
#include "engine/state/device_buffer.h"
#include "engine/state/rule_state.h"
#include "engine/state/state_shard.h"
#include "muster/optimizer.h"
#include "plan/catalog.h"

namespace muster::engine {

// Everything that is passed by reference or in a span outlives the state.
struct StateInput {
  const plan::Catalog& catalog;
  const Plan& plan;
  int32_t rank = 0;
  const OptimizerOptions& options;
  std::span<const ParameterMemory> memory;  // per parameter; the pointers may change between steps
  kernels::Kernels& kernels;                // on their device the state has its memory
};

class State {
 public:
  explicit State(const StateInput& input);

  // Programs reserve what they update. The first request sets the place, and later ones return it, so that a program
  // of some parameters finds what the program of all parameters reserved. Places are elements of the stores below.

  // This rank's momentum of a matrix. `second` of the blocks counts from the place that is returned.
  int64_t reserve_momentum(int32_t matrix, std::span<const StridedBlock> blocks);
  int64_t reserve_variance(int32_t matrix);
  // The state that the rule of a matrix declares, all entries end to end: RuleStateLayout.
  int64_t reserve_rule_state(int32_t matrix);
  // AdamW's or Lion's moments of elements first to first + count of this rank's shard. Element `first` is number
  // `index` of the tensor.
  struct MomentPlaces {
    int64_t first = 0;
    int64_t second = -1;  // AdamW only
  };
  MomentPlaces reserve_moments(int32_t parameter, int64_t first, int64_t count, int64_t index);
  // The master or mantissa of elements that this rank updates, `first` of the blocks in its shard. `primary` as in
  // StateBlock.
  void reserve_extra(int32_t parameter, std::span<const StridedBlock> blocks, bool primary);

  // Allocates what was reserved, all zeros. Nothing can be reserved afterwards.
  void allocate();

  // True if the holders of a parameter keep its state, in the caller's memory.
  bool holders_keep(int32_t parameter) const {
    return catalog_.problem().parameters[parameter].state_keeper == StateKeeper::kHolders;
  }
  // False if the parameter's rule has momentum of its own.
  bool keeps_momentum(int32_t parameter) const {
    return muster::keeps_momentum(catalog_.problem().parameters[parameter]);
  }
  // Rows of momentum as kernels take them: of a block of this rank's shard, or dense from its place.
  struct MomentumRows {
    void* data = nullptr;
    int64_t stride = 0;
  };
  MomentumRows momentum(int32_t parameter, const StridedBlock& block, int64_t place);
  std::byte* owner_momentum(int64_t place) { return momentum_.memory.data() + place * momentum_.width; }
  float* variance(int32_t parameter, int64_t place) {
    float* const own = variance_.memory.as<float>();
    if (place < 0) return own;  // no NorMuon: not read
    return (holders_keep(parameter) ? static_cast<float*>(memory_[parameter].statistics) : own) + place;
  }
  float* rule_state(int64_t place) { return rule_.memory.as<float>() + place; }
  // The entries that the rule of a parameter declares.
  const std::vector<RuleState>& rule_entries(int32_t parameter) const { return rule_entries_[parameter]; }
  // Moments from element `first` of this rank's shard on.
  struct MomentPointers {
    float* first = nullptr;
    float* second = nullptr;
  };
  MomentPointers moments(int32_t parameter, int64_t first, const MomentPlaces& places);
  // Updates done, per parameter.
  int64_t* updates() { return given_updates_ != nullptr ? given_updates_ : updates_.as<int64_t>(); }

  // This rank's shard of a parameter: `first` of the blocks is in its storage.
  std::vector<StridedBlock> shard_blocks(int32_t parameter) const;
  // True if this rank's copy is the primary one where replicas have the same.
  bool is_primary(int32_t parameter) const;

  int64_t& steps;  // steps done
  int64_t& seed;   // seed of stochastic rounding

  // This rank's shards of all state tensors, or of the one named.
  std::vector<StateShard> shards();
  std::optional<StateShard> find_shard(const std::string& name);

 private:
  // A part of a tensor: `first` of the block is an element of the store, or of the caller's memory.
  struct Part {
    StridedBlock block;
    bool primary = true;
  };
  using Parts = std::vector<Part>;

  // One kind of state of all parameters, in memory of this class.
  struct Store {
    int64_t width = 4;           // bytes of an element
    int64_t elements = 0;        // reserved
    std::vector<Parts> parts{};  // per parameter
    DeviceBuffer memory{};
  };
  struct Stored {
    void* memory = nullptr;
    Parts parts;
  };

  void require_open() const;
  static int64_t reserve_line(Store& store, int32_t parameter, StridedBlock block, bool primary);

  std::vector<StateShard> parameter_shards(int32_t parameter);
  std::vector<StateShard> optimizer_shards();
  StateShard make_shard(StateInfo info, const Stored& stored) const;
  StateShard counter_shard(std::string name, int64_t* counter, kernels::Kernels* device) const;
  kernels::Kernels* device() const { return kernels_.async_device() != nullptr ? &kernels_ : nullptr; }
  Parts local_parts(int32_t parameter, const layout::Partition& partition) const;
  Stored stored(int32_t parameter, const Store& store, void* holders_memory) const;
  Stored stored_variance(int32_t parameter) const;
  Stored stored_extra(int32_t parameter) const;
  std::vector<StateShard> rule_shards(int32_t parameter) const;

  const plan::Catalog& catalog_;
  const Plan& plan_;
  const int32_t rank_;
  const Dtype momentum_dtype_;
  const std::span<const ParameterMemory> memory_;
  kernels::Kernels& kernels_;

  std::map<int32_t, int64_t> momentum_places_;  // by matrix
  std::map<int32_t, int64_t> variance_places_;
  std::map<std::pair<int32_t, int64_t>, MomentPlaces> moment_places_;  // by parameter and first element
  Store momentum_;
  Store variance_;
  Store first_;
  Store second_;
  std::map<int32_t, int64_t> rule_places_;                  // by matrix
  Store rule_;                                              // its parts are rule_parts_
  std::vector<std::vector<Parts>> rule_parts_;              // per parameter and entry
  const std::vector<std::vector<RuleState>> rule_entries_;  // per parameter
  std::vector<Parts> extra_parts_;                          // per parameter
  std::vector<int64_t> variance_lines_;                     // of all matrices of a parameter
  bool allocated_ = false;

  DeviceBuffer updates_;
  int64_t* const given_updates_;
  int64_t own_counters_[2];  // `steps` and `seed` refer to these unless the caller has counters
  std::unordered_map<std::string, int32_t> parameter_of_name_;
};

}  // namespace muster::engine
