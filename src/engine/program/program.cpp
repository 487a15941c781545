#include "engine/program/program.h"

#include "engine/program/elementwise.h"
#include "engine/program/wave_compiler.h"
#include "plan/scratch.h"

namespace muster::engine {

namespace {

void lay_out_arena(Program& program, plan::Arena arena) {
  for (size_t w = 0; w < program.waves.size(); ++w) arena.add(w, program.waves[w].bytes);
  for (size_t w = 0; w < program.waves.size(); ++w) program.wave_offsets.push_back(arena.begin(w));
  program.arena_bytes = arena.bytes();
}

}  // namespace

BatchKey batch_key(const ProgramInput& input, int32_t matrix) {
  const plan::Matrix& m = input.catalog.class_at(matrix).matrix;
  return {.rows = m.rows,
          .columns = m.columns,
          .group = input.group_of[input.catalog.parameter_of(matrix)],
          .normuon = m.normuon,
          .norm_axis = m.norm_axis,
          .rule = m.rule()};
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
  lay_out_arena(program, plan::Arena(plan::arena_slots(input.plan)));
  return program;
}

}  // namespace muster::engine
