// Compiles one wave of a plan for one rank.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "engine/program/program.h"
#include "plan/exchange.h"

namespace muster::engine {

class WaveCompiler {
 public:
  // Keeps the references.
  WaveCompiler(const ProgramInput& input, int32_t wave, State& state);

  WaveProgram compile();  // once

 private:
  using Segments = std::span<const plan::Segment>;
  using Blocks = std::vector<StridedBlock>;
  using Messages = std::vector<plan::Message>;

  // Places in the wave's part of the arena: wave_places.cpp.
  void place_matrices();
  void place_home(int32_t matrix);
  OwnedMatrix placed_owned(int32_t matrix);
  int64_t place_variance(int32_t matrix);
  void place_rule_state();
  void place_sums(const plan::Exchange& in);
  void place_sum(const plan::Segment& segment, int64_t sum);
  void place_messages(const plan::Exchange& in, const plan::Exchange& out);
  std::vector<StagedMessage> place_each(const Messages& messages);
  std::vector<StagedMessage> place_equal_once(const Messages& messages);

  // Steps up to the exchange in: wave_in.cpp. `begin` is the byte where a message is staged.
  void compile_in(const plan::Exchange& in);
  void pack_local(Segments segments);
  void pack_message(const plan::Message& message, int64_t begin);
  void unpack_message(const plan::Message& message, int64_t begin);
  void pack(std::vector<PackStep>& steps, Segments segments, const Blocks& to);
  void add_sums(int32_t from_rank, const plan::Segment& segment, int64_t staged);
  void follow_other_replicas();

  // Steps from the orthogonalized matrices on: wave_out.cpp.
  void compile_out(const plan::Exchange& out);
  void apply_local(const plan::Segment& segment);
  void apply(std::vector<ApplyStep>& steps, const plan::Segment& segment, const Blocks& from);
  void add_weights(std::vector<WeightStep>& steps, const plan::Segment& segment, int64_t message) const;

  void add_statistics(const plan::Exchange& in, const plan::Exchange& out);  // wave_statistics.cpp

  // The blocks of segments of one matrix. `second` is an element of the matrix, a wire element of the assembled matrix,
  // or a wire element of the message that begins at a byte, where the segments are dense.
  Blocks blocks_of(const plan::Segment& segment) const;
  Blocks blocks_of(Segments segments) const;
  Blocks assembled_blocks(Segments segments) const;
  Blocks staged_blocks(Segments segments, int64_t message) const;
  static void copy(std::vector<CopyStep>& steps, const Blocks& from, const Blocks& to);

  const Shape& shape(int32_t parameter) const { return input_.parameter(parameter).shape; }
  const plan::MatrixClass& class_at(int32_t matrix) const { return catalog_.class_at(matrix); }
  const Wave& wave() const { return input_.plan.waves[number_]; }
  // True if replicas send their gradients, to be averaged where the segment is updated.
  bool averages(const plan::Segment& segment) const;
  // True if new weights travel back, not updates.
  bool returns_weights(const plan::Segment& segment) const;
  HomeMatrix* find_home(int32_t matrix);  // null: it is not at home

  // A matrix, or an element range of a parameter by its first element in the shard.
  using SumKey = std::pair<int32_t, int64_t>;
  static SumKey sum_key(const plan::Segment& segment);

  const ProgramInput& input_;
  const plan::Catalog& catalog_;
  const int32_t rank_;
  const int32_t number_;  // of the wave
  const int64_t wire_bytes_;
  State& state_;
  WaveProgram program_;

  std::map<int32_t, int64_t> assembled_;                // wire element of each assembled matrix
  std::map<int32_t, int64_t> assembled_statistics_;     // f32 element of assembled statistics, by matrix
  std::map<SumKey, int64_t> sums_;                      // f32 element of each sum
  std::vector<std::pair<int32_t, SumStep>> sum_steps_;  // with the rank that the gradients come from
  std::map<BatchKey, HomeBatch> home_;
  std::map<int32_t, std::pair<BatchKey, size_t>> home_at_;  // batch and number in it, by matrix
};

}  // namespace muster::engine
