#include "engine/program/wave_compiler.h"

namespace muster::engine {

WaveCompiler::WaveCompiler(const ProgramInput& input, int32_t wave, State& state)
    : input_(input),
      catalog_(input.catalog),
      rank_(input.rank),
      number_(wave),
      wire_bytes_(input.wire_bytes()),
      state_(state) {}

WaveProgram WaveCompiler::compile() {
  const plan::Exchange in = plan::exchange_in(catalog_, input_.plan, rank_, number_, input_.active);
  const plan::Exchange out = plan::exchange_out(catalog_, input_.plan, rank_, number_, input_.active);
  place_matrices();
  place_sums(in);
  place_messages(in, out);
  compile_in(in);
  follow_other_replicas();
  compile_out(out);
  add_statistics(in, out);
  for (auto& [key, batch] : home_) program_.home.push_back(std::move(batch));
  return std::move(program_);
}

bool WaveCompiler::averages(const plan::Segment& segment) const {
  return segment.matrix >= 0 ? class_at(segment.matrix).all_replicas : catalog_.problem().grad_sync;
}

bool WaveCompiler::returns_weights(const plan::Segment& segment) const {
  return segment.matrix < 0 || class_at(segment.matrix).weights_back;
}

HomeMatrix* WaveCompiler::find_home(int32_t matrix) {
  const auto found = home_at_.find(matrix);
  if (found == home_at_.end()) return nullptr;
  const auto& [key, number] = found->second;
  return &home_.at(key).matrices[number];
}

WaveCompiler::SumKey WaveCompiler::sum_key(const plan::Segment& segment) {
  return {segment.parameter, segment.matrix >= 0 ? -1 - segment.matrix : segment.piece.first_offset};
}

WaveCompiler::Blocks WaveCompiler::blocks_of(const plan::Segment& segment) const {
  if (segment.matrix >= 0) return strided_blocks(segment.piece, shape(segment.parameter));
  // A range of the shard is one row, wherever its elements are in the tensor.
  const int64_t first = segment.piece.first_offset;
  const int64_t count = segment.elements();
  return {{.rows = 1,
           .columns = count,
           .first = first,
           .first_stride = count,
           .second = first,
           .second_stride = count,
           .index = 0,
           .index_stride = 0}};
}

WaveCompiler::Blocks WaveCompiler::blocks_of(Segments segments) const {
  Blocks out;
  for (const plan::Segment& segment : segments) {
    for (const StridedBlock& block : blocks_of(segment)) out.push_back(block);
  }
  return out;
}

WaveCompiler::Blocks WaveCompiler::assembled_blocks(Segments segments) const {
  return shifted(blocks_of(segments), assembled_.at(segments[0].matrix));
}

WaveCompiler::Blocks WaveCompiler::staged_blocks(Segments segments, int64_t message) const {
  return packed(blocks_of(segments), (message + segments[0].offset) / wire_bytes_);
}

void WaveCompiler::copy(std::vector<CopyStep>& steps, const Blocks& from, const Blocks& to) {
  for (size_t i = 0; i < from.size(); ++i) {
    steps.push_back({.rows = from[i].rows,
                     .columns = from[i].columns,
                     .from = from[i].second,
                     .from_stride = from[i].second_stride,
                     .to = to[i].second,
                     .to_stride = to[i].second_stride});
  }
}

}  // namespace muster::engine
