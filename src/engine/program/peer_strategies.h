// What strategies that reproduce other systems add to a program, so that their schedules can be measured: padded
// messages, matrices of zeros, and holders that gather whole matrices. Plans of strategy `global` have none of these.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/program/program.h"
#include "plan/exchange.h"

namespace muster::engine {

// OwnedMatrix::parameter of a matrix of zeros.
inline constexpr int32_t kZeroMatrix = -1;

// True if in this wave all holders of a matrix gather it, not its owner alone.
bool holders_gather(const Wave& wave);
// True if they also orthogonalize it, each for itself.
bool holders_orthogonalize(const Wave& wave);
// True if this rank is a holder that gathers the matrix.
bool gathers_as_holder(const ProgramInput& input, int32_t matrix);

// Adds the matrices of zeros that this rank orthogonalizes in the wave, and the ranges to clear for them.
void add_zero_matrices(const ProgramInput& input, int32_t wave, WaveProgram& program,
                       std::map<BatchKey, OwnedBatch>& batches);

// Adds the places of messages with padding to `clear`, each place once.
void clear_padding(std::span<const plan::Message> messages, std::span<const StagedMessage> staged,
                   std::vector<ByteRange>& clear);

}  // namespace muster::engine
