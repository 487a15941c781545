// A plan compiled for one rank: flat lists of what to pack, send, receive, orthogonalize and apply, over one arena.
//
// Every wave has a part of the arena. Places in it are counted from its start, in bytes, in wire elements (elements of
// the wire dtype) or in f32 elements. `first` of a block is an element of this rank's shard of the parameter.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/program/strided_block.h"
#include "engine/state/state.h"
#include "muster/plan.h"
#include "plan/catalog.h"

namespace muster::engine {

// What a program is compiled from.
struct ProgramInput {
  const plan::Catalog& catalog;
  const Plan& plan;
  int32_t rank = 0;
  std::span<const int32_t> group_of;  // hyperparameter group per parameter
  std::vector<bool> active{};         // per parameter: it takes part in the step; empty: all take part

  const Parameter& parameter(int32_t p) const { return catalog.problem().parameters[p]; }
  bool is_active(int32_t p) const { return active.empty() || active[p]; }
  int64_t wire_bytes() const { return byte_size(catalog.problem().wire); }
  bool in_wave(int32_t matrix, int32_t wave) const {
    return plan.wave[matrix] == wave && is_active(catalog.parameter_of(matrix));
  }
};

// Bytes in a wave's part of the arena, counted from its start.
struct ByteRange {
  int64_t offset = 0;
  int64_t bytes = 0;
};

struct StagedMessage {
  int32_t peer = 0;
  ByteRange range;
};

// Gradient and momentum to an update. `second` of the block is a wire element of the wave's part, or of the matrix if
// it is at home; kNowhere if another replica sends the update and only the momentum changes here.
struct PackStep {
  static constexpr int64_t kNowhere = -1;
  int32_t parameter = 0;
  StridedBlock block;
  int64_t momentum = 0;  // State::momentum(); not used where the rule has its own
};

// Gradients that other ranks average, as they are. The staged copy is dense.
struct GradientStep {
  int32_t parameter = 0;
  StridedBlock block;
  int64_t staged = 0;  // byte
};

// Adds one replica's gradients to an f32 sum. Steps are ordered by the rank that the gradients come from.
struct SumStep {
  int32_t parameter = 0;
  StridedBlock block;   // `second` is an f32 element of the sum
  int64_t staged = -1;  // byte of the dense copy in a message; -1: this rank's own gradients
};

struct AverageStep {
  int64_t sum = 0;  // f32 element
  int64_t count = 0;
  int32_t replicas = 1;
};

// Averaged gradients and momentum of a whole matrix, at its owner, to an update.
struct OwnerMomentumStep {
  int32_t parameter = 0;
  int64_t count = 0;
  int64_t sum = 0;        // f32 element
  int64_t momentum = 0;   // State::owner_momentum()
  int64_t assembled = 0;  // wire element
};

// Rows within the wave's part, between messages and assembled matrices. All places are in wire elements, or in f32
// elements for statistics.
struct CopyStep {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t from = 0;
  int64_t from_stride = 0;
  int64_t to = 0;
  int64_t to_stride = 0;
};

// NorMuon's statistics of some lines, between the holder's memory and the wave's part.
struct LineStep {
  int32_t parameter = 0;
  int64_t held = 0;    // element of this rank's statistics of the parameter
  int64_t staged = 0;  // f32 element
  int64_t count = 0;
};

struct OwnedMatrix {
  int32_t parameter = 0;            // or kZeroMatrix
  int32_t measured = -1;            // the matrix, if this rank reports its orthogonality error
  int64_t assembled = 0;            // wire element
  int64_t variance = -1;            // State::variance(); -1: no NorMuon, or the statistics are assembled
  int64_t rule_state = -1;          // State::rule_state(); -1: no rule
  int64_t assembled_variance = -1;  // byte of assembled statistics; -1: there are none
};

// Matrices of one shape, hyperparameter group and NorMuon setting are orthogonalized, or given to their rule, in one
// batch.
struct BatchKey {
  int64_t rows = 0;
  int64_t columns = 0;
  int32_t group = 0;
  bool normuon = false;
  NormAxis norm_axis = NormAxis::kRows;
  bool rule = false;  // the rule of the group is called, instead of Newton-Schulz

  auto operator<=>(const BatchKey&) const = default;
};
BatchKey batch_key(const ProgramInput& input, int32_t matrix);

struct OwnedBatch {
  BatchKey key;
  std::vector<OwnedMatrix> matrices;
};

// An update to weights. `second` of the block is a wire element of the wave's part, or of the matrix if it is at home.
struct ApplyStep {
  int32_t parameter = 0;
  int32_t matrix = 0;
  StridedBlock block;
};

// A matrix of which nothing travels. Its update lives in the workspace and takes no place in the arena.
struct HomeMatrix {
  int32_t parameter = 0;
  int32_t measured = -1;  // as in OwnedMatrix
  int64_t variance = -1;
  int64_t rule_state = -1;
  std::vector<PackStep> pack{};
  std::vector<ApplyStep> apply{};
};

struct HomeBatch {
  BatchKey key;
  std::vector<HomeMatrix> matrices;
};

// AdamW or Lion on consecutive elements of this rank's shard.
struct RangeStep {
  int32_t parameter = 0;
  int64_t first = 0;
  int64_t count = 0;
  int64_t index = 0;  // of the first element in the tensor
  State::MomentPlaces moments{};
  int64_t sum = -1;  // f32 element of averaged gradients; -1: the caller's gradients
};

// Weights that another rank updated, or that this rank sends to one. The staged copy is dense.
struct WeightStep {
  int32_t parameter = 0;
  StridedBlock block;
  int64_t staged = 0;  // byte
};

// Zeros that strategies other than `global` send and orthogonalize: see peer_strategies.h. Empty for `global`.
struct PeerPadding {
  std::vector<ByteRange> clear_in;   // cleared before messages in are packed: matrices of zeros, padded messages
  std::vector<ByteRange> clear_out;  // cleared before messages out are staged: padded messages
};

// The lists of one wave, in the order in which the executor walks them.
struct WaveProgram {
  // Into the exchange in.
  std::vector<PackStep> pack;
  std::vector<CopyStep> gather;  // to messages, from matrices that this rank packed for itself too
  std::vector<GradientStep> gradients;
  std::vector<LineStep> lines_in;  // statistics to messages and to assembled statistics
  std::vector<StagedMessage> send_in;
  std::vector<StagedMessage> receive_in;

  // Computation.
  std::vector<CopyStep> assemble;        // messages to matrices
  std::vector<CopyStep> assemble_lines;  // messages to assembled statistics
  std::vector<ByteRange> sums;           // cleared before the first SumStep
  std::vector<SumStep> sum;
  std::vector<AverageStep> average;
  std::vector<OwnerMomentumStep> owner_momentum;
  std::vector<OwnedBatch> owned;
  std::vector<HomeBatch> home;
  std::vector<RangeStep> ranges;         // from the caller's gradients
  std::vector<RangeStep> summed_ranges;  // from averaged gradients
  std::vector<ApplyStep> apply_first;    // to weights that are then sent

  // Into and out of the exchange out.
  std::vector<CopyStep> stage_out;    // matrices to messages
  std::vector<CopyStep> stage_lines;  // assembled statistics to messages
  std::vector<LineStep> lines_out;    // statistics that were updated in the holder's memory, to messages
  std::vector<WeightStep> weights_out;
  std::vector<StagedMessage> send_out;
  std::vector<StagedMessage> receive_out;
  std::vector<WeightStep> weights_in;
  std::vector<ApplyStep> apply;
  std::vector<LineStep> lines_back;  // new statistics to the holder's memory

  PeerPadding padding;
  int64_t bytes = 0;  // of the wave's part

  // A new place in the wave's part, aligned.
  ByteRange reserve(int64_t size);
};

struct Program {
  std::vector<WaveProgram> waves;
  int64_t arena_bytes = 0;            // for all waves that are under way at once: plan/scratch.h
  std::vector<int64_t> wave_offsets;  // byte of each wave's part in the arena
  int64_t number = 0;                 // unique among the programs of an optimizer
};

// Asks `state` for the places of what the program updates. Deterministic; ranks need not call it together.
Program compile(const ProgramInput& input, State& state);

}  // namespace muster::engine
