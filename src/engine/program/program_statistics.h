// NorMuon's statistics in the program of a wave, where the holders of a parameter keep them.
#pragma once

#include <cstdint>
#include <map>

#include "engine/program/program.h"
#include "plan/exchange.h"

namespace muster::engine {

// Adds the steps that move them, to messages that are staged. `assembled_at` is where statistics are put together, by
// matrix, as elements of f32 in the wave's part; those of other matrices are updated where this rank keeps them.
void compile_lines(const plan::Exchange& in, const plan::Exchange& out, const std::map<int32_t, int64_t>& assembled_at,
                   WaveProgram& wave);

}  // namespace muster::engine
