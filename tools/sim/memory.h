// What a step needs of a rank's memory: weights, gradients, state and scratch. No activations.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/catalog.h"
#include "plan/cost_model/wave_work.h"
#include "plan/scratch.h"

namespace muster::sim {

class Memory {
 public:
  Memory(const plan::Catalog& catalog, const Plan& plan);

  void add(int32_t wave, int32_t rank, const plan::RankWork& activity, const plan::Traffic& in,
           const plan::Traffic& out);

  int64_t scratch_bytes_max() const;  // of Muster's executor
  // Momentum in f32, NorMuon's mean squares, two moments of AdamW or one of Lion included. For `chunked`, in place of
  // that scratch, what the public code that it reproduces allocates for its largest batch, were it the only one under
  // way.
  int64_t bytes_max() const;

 private:
  struct Rank {
    int64_t held = 0;  // weights, gradients, state
    plan::Arena arena;
    int64_t workspace = 0;
    int64_t peers_batch = 0;  // as the public code has it
    int64_t scratch() const { return arena.bytes() + workspace; }
  };
  const Plan& plan_;
  const int64_t zero_bytes_;  // of an element of a padding tensor
  std::vector<Rank> ranks_;
};

}  // namespace muster::sim
