// What a rank carries from step to step, and which elements of which unsharded tensors that is.
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
#include "engine/state/state_shard.h"
#include "muster/optimizer.h"
#include "plan/catalog.h"

namespace muster::engine {

int64_t weight_bytes(WeightForm form);
int64_t extra_bytes(WeightForm form);  // 0: there is none

class State {
 public:
  // Keeps its memory where the kernels compute, as the weights are. All references outlive it.
  State(const plan::Catalog& catalog, const Plan& plan, int32_t rank, const OptimizerOptions& options,
        std::span<const ParameterMemory> memory, kernels::Kernels& kernels);

  // Places, as elements of the stores below. They are handed out at the first request and stay: a program for some of
  // the parameters finds what the one for all of them placed.
  //
  // Momentum of a rank's part of a matrix; `second` of its blocks says where it goes, from the place onwards.
  int64_t place_momentum(int32_t matrix, std::span<const StridedBlock> blocks);
  int64_t place_variance(int32_t matrix);
  // Moments of elements first to first + count of this rank's shard; number `index` of the tensor onwards.
  struct Moments {
    int64_t first = 0;
    int64_t second = -1;  // AdamW's only
  };
  Moments place_moments(int32_t parameter, int64_t first, int64_t count, int64_t index);
  // Elements whose master or mantissa this rank keeps: it updates them, `first` of the blocks in its shard.
  void place_extra(int32_t parameter, std::span<const StridedBlock> blocks, bool counts);

  // After the last place: zeros everywhere.
  void allocate();

  // True if the holders of a parameter keep its state, in memory that the caller gives.
  bool held(int32_t parameter) const {
    return catalog_.problem().parameters[parameter].state_keeper == StateKeeper::kHolders;
  }
  // Rows of momentum, as kernels take them: of a block of this rank's shard, or dense from its place.
  struct MomentumRows {
    void* data = nullptr;
    int64_t stride = 0;
  };
  MomentumRows momentum(int32_t parameter, const StridedBlock& block, int64_t place);
  std::byte* owner_momentum(int64_t place) { return momentum_.data() + place * momentum_width_; }
  float* variance(int32_t parameter, int64_t at) {
    if (at < 0) return variance_.as<float>();  // no NorMuon: not read
    return (held(parameter) ? static_cast<float*>(memory_[parameter].statistics) : variance_.as<float>()) + at;
  }
  // Moments of element `first` of this rank's shard onwards.
  struct MomentPointers {
    float* first = nullptr;
    float* second = nullptr;
  };
  MomentPointers moments(int32_t parameter, int64_t first, const Moments& place);
  int64_t* updates() { return given_updates_ != nullptr ? given_updates_ : updates_.as<int64_t>(); }  // per parameter

  // This rank's shard of a parameter: `first` of the blocks is in its storage.
  std::vector<StridedBlock> shard(int32_t parameter) const;
  // This rank's copy is the one that counts where replicas have the same.
  bool stands_for(int32_t parameter) const;

  int64_t& steps;  // steps done
  int64_t& seed;   // seed of stochastic rounding

  // Every unsharded tensor, and this rank's pieces of it.
  std::vector<StateShard> slices();
  std::optional<StateShard> slice(const std::string& name);

 private:
  void require_open() const;

  struct Piece {
    StridedBlock block;
    int64_t at = 0;  // in its store
    int64_t stride = 0;
    bool counts = true;
  };
  using Pieces = std::vector<std::vector<Piece>>;  // by parameter

  // Of a parameter; kOptimizer: of all of it.
  static constexpr int32_t kOptimizer = -1;
  void add_slices(int32_t parameter, std::vector<StateShard>& out);
  std::vector<Piece> statistics_pieces(int32_t parameter) const;

  const plan::Catalog& catalog_;
  const Plan& plan_;
  const int32_t rank_;
  const Dtype momentum_dtype_;
  const int64_t momentum_width_;
  const std::span<const ParameterMemory> memory_;
  kernels::Kernels& kernels_;

  std::map<int32_t, int64_t> momentum_places_;  // by matrix
  std::map<int32_t, int64_t> variance_places_;
  std::map<std::pair<int32_t, int64_t>, Moments> moment_places_;  // by parameter and first element
  Pieces momentum_pieces_;
  Pieces variance_pieces_;
  Pieces first_pieces_;
  Pieces second_pieces_;
  Pieces extra_pieces_;
  std::vector<int64_t> variance_lines_;  // of all matrices of a parameter

  bool allocated_ = false;
  int64_t momentum_elements_ = 0;
  int64_t variance_elements_ = 0;
  int64_t first_elements_ = 0;
  int64_t second_elements_ = 0;
  DeviceBuffer momentum_;
  DeviceBuffer variance_;
  DeviceBuffer first_;
  DeviceBuffer second_;
  DeviceBuffer updates_;
  int64_t* const given_updates_;
  int64_t own_counters_[2];  // what `steps` and `seed` refer to, unless the caller has counters
  std::unordered_map<std::string, int32_t> numbers_;  // of parameters, by name
};

}  // namespace muster::engine
