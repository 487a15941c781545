#include "engine/program/program.h"

#include <algorithm>
#include <array>

#include "engine/program/elementwise.h"
#include "engine/program/wave_compiler.h"
#include "plan/scratch.h"

namespace muster::engine {

namespace {

// Wave w uses slot w % kSlots of the arena; a slot is as large as the largest of its waves.
void lay_out_arena(Program& program) {
  using plan::kSlots;
  std::array<int64_t, kSlots> bytes{};
  for (size_t w = 0; w < program.waves.size(); ++w) {
    bytes[w % kSlots] = std::max(bytes[w % kSlots], program.waves[w].bytes);
  }
  std::array<int64_t, kSlots> begin{};
  for (size_t slot = 0; slot < kSlots; ++slot) {
    begin[slot] = program.arena_bytes;
    program.arena_bytes += bytes[slot];
  }
  for (size_t w = 0; w < program.waves.size(); ++w) program.wave_offsets.push_back(begin[w % kSlots]);
}

}  // namespace

BatchKey batch_key(const ProgramInput& input, int32_t matrix) {
  const plan::Matrix& m = input.catalog.class_at(matrix).matrix;
  return {.rows = m.rows,
          .columns = m.columns,
          .group = input.group_of[input.catalog.parameter_of(matrix)],
          .normuon = m.normuon,
          .norm_axis = m.norm_axis};
}

ByteRange WaveProgram::reserve(int64_t size) {
  const ByteRange range{.offset = bytes, .bytes = size};
  bytes += plan::aligned(size);
  return range;
}

Program compile(const ProgramInput& input, State& state) {
  Program program;
  for (int32_t w = 0; w < static_cast<int32_t>(input.plan.waves.size()); ++w) {
    program.waves.push_back(WaveCompiler(input, w, state).compile());
  }
  spread_local_elementwise(input, state, program.waves);
  lay_out_arena(program);
  return program;
}

}  // namespace muster::engine
