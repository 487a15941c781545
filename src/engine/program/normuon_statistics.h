// How a program moves NorMuon's statistics of matrices whose holders keep them.
#pragma once

#include <cstdint>
#include <map>

#include "engine/program/program.h"
#include "plan/exchange.h"

namespace muster::engine {

// Adds the steps that move statistics into and out of messages, which must have their places already. `assembled_at`
// gives, by matrix, the f32 element of the wave's part where this rank assembles statistics. Statistics of other
// matrices are updated in the holder's memory.
void add_statistics_steps(const plan::Exchange& in, const plan::Exchange& out,
                          const std::map<int32_t, int64_t>& assembled_at, WaveProgram& wave);

}  // namespace muster::engine
