// A plan compiled for one rank: flat lists of what to pack, send, receive, orthogonalize and apply, over one arena.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/program/strided_block.h"
#include "engine/state/state.h"
#include "muster/plan.h"
#include "plan/catalog.h"

namespace muster::engine {

// Bytes in the part of the arena that a wave has to itself.
struct ByteRange {
  int64_t offset = 0;
  int64_t bytes = 0;
};

// A message, and where it is staged.
struct StagedMessage {
  int32_t peer = 0;
  ByteRange range;
};

// Gradient and momentum to an update: `first` of the block is in the rank's shard, `second` in elements of the wire
// dtype from the start of the wave's part, or of the matrix if it is at home; kNowhere if another replica sends the
// update. Momentum is dense, in State; or with the weights, where holders keep it.
struct PackStep {
  static constexpr int64_t kNowhere = -1;
  int32_t parameter = 0;
  StridedBlock block;
  int64_t momentum = 0;
};

// Raw gradients of replicas that are averaged here. `first` of the block is in the rank's shard; the staged copy is
// dense, from a byte of the wave's part.
struct GradientStep {
  int32_t parameter = 0;
  StridedBlock block;
  int64_t staged = 0;
};

// Adds one replica's gradients to a sum in f32, element `to` of the wave's part onwards. They come from a message, or
// from this rank's own shard (staged -1). Steps are in the order of the ranks they come from.
struct SumStep {
  int32_t parameter = 0;
  StridedBlock block;  // `second` is the sum
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
  int64_t momentum = 0;
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

// NorMuon's statistics between this rank's own, where holders keep them, and the wave's part.
struct LineStep {
  int32_t parameter = 0;
  int64_t held = 0;    // element of this rank's statistics
  int64_t staged = 0;  // element of f32 in the wave's part
  int64_t count = 0;
};

struct OwnedMatrix {
  int32_t parameter = -1;           // -1: a zero matrix
  int32_t measured = -1;            // the matrix, if statistics of it are this rank's to report
  int64_t assembled = 0;            // element in the wave's part
  int64_t variance = -1;            // in State; -1: no NorMuon, or they are assembled
  int64_t assembled_variance = -1;  // byte in the wave's part: of a zero matrix, or from the ranks that keep them
};

// Matrices of one shape, group and NorMuon setting.
struct BatchKey {
  int64_t rows = 0;
  int64_t columns = 0;
  int32_t group = 0;
  bool normuon = false;
  NormAxis norm_axis = NormAxis::kRows;

  auto operator<=>(const BatchKey&) const = default;
};

struct OwnedBatch {
  BatchKey key;
  std::vector<OwnedMatrix> matrices;
};

// An update to weights: `first` of the block is in the rank's shard, `second` in the wave's part, or in the matrix if
// it is at home.
struct ApplyStep {
  int32_t parameter = 0;
  int32_t matrix = 0;
  StridedBlock block;
};

// A matrix of which nothing travels: it needs no place in the arena, only the workspace.
struct HomeMatrix {
  int32_t parameter = 0;
  int32_t measured = -1;  // as in OwnedMatrix
  int64_t variance = -1;
  std::vector<PackStep> pack;
  std::vector<ApplyStep> apply;
};

struct HomeBatch {
  BatchKey key;
  std::vector<HomeMatrix> matrices;
};

// Elements of a parameter, in the rank's shard.
struct RangeStep {
  int32_t parameter = 0;
  int64_t first = 0;
  int64_t count = 0;
  int64_t index = 0;  // in the tensor
  State::Moments moments;
  int64_t sum = -1;  // averaged gradients, as an element of f32 in the wave's part; -1: the caller's
};

// Weights that another replica updated, or that go to one: `first` of the block is in the shard, the staged copy dense.
struct WeightStep {
  int32_t parameter = 0;
  StridedBlock block;
  int64_t staged = 0;  // byte in the wave's part
};

struct WaveProgram {
  std::vector<ByteRange> zero;  // padding in messages in, zero matrices; cleared first
  std::vector<PackStep> pack;
  std::vector<CopyStep> gather;  // pieces that go to several ranks, from where they were packed to
  std::vector<GradientStep> gradients;
  std::vector<LineStep> lines_in;  // statistics, into messages and to where they are assembled
  std::vector<StagedMessage> send_in;
  std::vector<StagedMessage> receive_in;
  std::vector<CopyStep> assemble;
  std::vector<CopyStep> assemble_lines;  // these, and stage_lines, in elements of f32
  std::vector<ByteRange> sums;           // cleared before the first is added
  std::vector<SumStep> sum;
  std::vector<AverageStep> average;
  std::vector<OwnerMomentumStep> owner_momentum;
  std::vector<OwnedBatch> owned;
  std::vector<HomeBatch> home;
  std::vector<RangeStep> ranges;         // AdamW and Lion, from gradients that are here
  std::vector<RangeStep> summed_ranges;  // and from averages
  std::vector<ApplyStep> apply_first;    // to weights that are sent afterwards
  std::vector<ByteRange> zero_out;       // padding in messages out
  std::vector<CopyStep> stage_out;
  std::vector<CopyStep> stage_lines;
  std::vector<LineStep> lines_out;  // statistics that were updated where they are kept, for other replicas
  std::vector<WeightStep> weights_out;
  std::vector<StagedMessage> send_out;
  std::vector<StagedMessage> receive_out;
  std::vector<WeightStep> weights_in;
  std::vector<ApplyStep> apply;
  std::vector<LineStep> lines_back;  // new statistics, to where they are kept
  int64_t bytes = 0;                 // of the wave's part
};

struct Program {
  std::vector<WaveProgram> waves;
  int64_t arena_bytes = 0;            // three waves in flight
  std::vector<int64_t> wave_offsets;  // of each wave's part in the arena
  int64_t number = 0;                 // no other program of an optimizer has it
};

// `active` says which parameters take part; empty: all. State hands out the places.
Program compile(const plan::Catalog& catalog, const Plan& plan, int32_t rank, std::span<const int32_t> group_of,
                const std::vector<bool>& active, State& state);

}  // namespace muster::engine
