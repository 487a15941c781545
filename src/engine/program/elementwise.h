// The elementwise parameters of a program: those that AdamW and Lion update.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/program/program.h"

namespace muster::engine {

// Elements first to first + count of this rank's shard.
struct ShardRange {
  int32_t parameter = 0;
  int64_t first = 0;
  int64_t count = 0;
};

// Adds the steps that update a range: one for every stretch whose elements are consecutive in the tensor too. `sum` is
// the f32 element where the averaged gradients of the range begin, or -1 for the caller's gradients.
void add_range_steps(const ShardRange& range, int64_t sum, State& state, WaveProgram& wave);

// Adds the parameters of which each rank updates all that it holds. They need no exchange. They are spread over the
// waves, to overlap the exchanges of matrices, unless the plan puts them first or last.
void spread_local_elementwise(const ProgramInput& input, State& state, std::vector<WaveProgram>& waves);

}  // namespace muster::engine
