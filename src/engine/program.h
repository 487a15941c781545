// A plan compiled for one rank: flat lists of what to pack, send, receive, orthogonalize and apply, over one arena.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/block.h"
#include "muster/plan.h"
#include "plan/catalog.h"

namespace muster::engine {

// Bytes in the part of the arena that a wave has to itself.
struct Span {
  int64_t offset = 0;
  int64_t bytes = 0;
};

// A message, and where it is staged.
struct Transfer {
  int32_t peer = 0;
  Span span;
};

// Gradient and momentum to an update: `first` of the block is in the rank's shard, `second` in the arena, in elements
// of the wire dtype from the start of the wave's part. Momentum lies in a store of its own, densely.
struct PackStep {
  int32_t parameter = 0;
  Block block;
  int64_t momentum = 0;  // element in the store
};

// Raw gradients of replicas that are averaged here. `first` of the block is in the rank's shard; the staged copy is
// dense, from a byte of the wave's part.
struct GradientStep {
  int32_t parameter = 0;
  Block block;
  int64_t staged = 0;
};

// Adds one replica's gradients to a sum in f32, element `to` of the wave's part onwards. They come from a message, or
// from this rank's own shard (staged -1). Steps are in the order of the ranks they come from.
struct SumStep {
  int32_t parameter = 0;
  Block block;  // `second` is the sum
  int64_t staged = -1;
};

struct AverageStep {
  int64_t sum = 0;  // element of f32 in the wave's part
  int64_t count = 0;
  int32_t replicas = 1;
};

// Momentum of a whole matrix at its owner, from averaged gradients.
struct OwnerMomentumStep {
  int32_t parameter = 0;
  int64_t count = 0;
  int64_t sum = 0;
  int64_t momentum = 0;   // element in the store
  int64_t assembled = 0;  // element of the wire dtype in the wave's part
};

// Staged bytes to an assembled matrix, or back: both in elements of the wire dtype from the start of the wave's part.
struct CopyStep {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t from = 0;
  int64_t from_stride = 0;
  int64_t to = 0;
  int64_t to_stride = 0;
};

struct OwnedMatrix {
  int32_t parameter = 0;
  int64_t assembled = 0;  // element in the wave's part
  int64_t variance = -1;  // element in the store of variances; -1: no NorMuon
};

// Matrices of one shape and one NorMuon setting.
struct OwnedBatch {
  int64_t rows = 0;
  int64_t columns = 0;
  bool normuon = false;
  NormAxis norm_axis = NormAxis::kRows;
  std::vector<OwnedMatrix> matrices;
};

// An update to weights: `first` of the block is in the rank's shard, `second` in the wave's part.
struct ApplyStep {
  int32_t parameter = 0;
  int32_t matrix = 0;
  Block block;
};

// Elements of a parameter, in the rank's shard.
struct RangeStep {
  int32_t parameter = 0;
  int64_t first = 0;
  int64_t count = 0;
  int64_t index = 0;   // in the tensor
  int64_t moment = 0;  // element in the store of moments
  int64_t sum = -1;    // averaged gradients, as an element of f32 in the wave's part; -1: the caller's
};

// Weights that another replica updated, or that go to one: `first` of the block is in the shard, the staged copy dense.
struct WeightStep {
  int32_t parameter = 0;
  Block block;
  int64_t staged = 0;  // byte in the wave's part
};

struct WaveProgram {
  std::vector<Span> zero;  // padding in messages and zero matrices, cleared first
  std::vector<PackStep> pack;
  std::vector<CopyStep> gather;  // pieces that go to several ranks, from where they were packed to
  std::vector<GradientStep> gradients;
  std::vector<Transfer> send_in;
  std::vector<Transfer> receive_in;
  std::vector<CopyStep> assemble;
  std::vector<Span> sums;  // cleared before the first is added
  std::vector<SumStep> sum;
  std::vector<AverageStep> average;
  std::vector<OwnerMomentumStep> owner_momentum;
  std::vector<OwnedBatch> owned;
  std::vector<RangeStep> ranges;       // AdamW and Lion
  std::vector<ApplyStep> apply_first;  // to weights that are sent afterwards
  std::vector<CopyStep> stage_out;
  std::vector<WeightStep> weights_out;
  std::vector<Transfer> send_out;
  std::vector<Transfer> receive_out;
  std::vector<WeightStep> weights_in;
  std::vector<ApplyStep> apply;
  int64_t bytes = 0;  // of the wave's part
};

struct Program {
  std::vector<WaveProgram> waves;
  int64_t momentum_elements = 0;
  int64_t variance_elements = 0;
  int64_t moment_elements = 0;
  int64_t arena_bytes = 0;            // three waves in flight
  std::vector<int64_t> wave_offsets;  // of each wave's part in the arena
};

// Throws InvalidArgument where the plan wants what the engine does not do.
Program compile(const plan::Catalog& catalog, const Plan& plan, int32_t rank);

}  // namespace muster::engine
