#include "engine/program/peer_strategies.h"

#include <algorithm>
#include <set>

#include "muster/error.h"
#include "plan/replicas.h"
#include "plan/scratch.h"

namespace muster::engine {

bool holders_gather(const Wave& wave) {
  return wave.transport == Transport::kGather || wave.transport == Transport::kGatherReduce;
}

bool holders_orthogonalize(const Wave& wave) { return wave.transport == Transport::kGather; }

bool gathers_as_holder(const ProgramInput& input, int32_t matrix) {
  if (!holders_gather(input.plan.waves[input.plan.wave[matrix]])) return false;
  if (input.catalog.class_at(matrix).all_replicas) throw Internal("a gather cannot average replicas");
  return input.catalog.holders_of(matrix).find(input.rank) != nullptr;
}

void add_zero_matrices(const ProgramInput& input, int32_t wave, WaveProgram& program,
                       std::map<BatchKey, OwnedBatch>& batches) {
  const auto add_zeros = [&](int64_t bytes) {
    program.padding.clear_in.push_back(program.reserve(bytes));
    return program.padding.clear_in.back().offset;
  };
  for (const ZeroMatrix& zero : input.plan.waves[wave].zeros) {
    if (plan::owner_for(input.catalog, input.plan, zero, input.rank) != input.rank) continue;
    if (!input.is_active(input.catalog.parameter_of(zero.like))) continue;
    const plan::Matrix& shape = input.catalog.class_at(zero.like).matrix;
    const BatchKey key = batch_key(input, zero.like);
    OwnedMatrix matrix{.parameter = kZeroMatrix};
    matrix.assembled = add_zeros(shape.elements() * input.wire_bytes()) / input.wire_bytes();
    if (shape.normuon) matrix.assembled_variance = add_zeros(std::max(shape.rows, shape.columns) * plan::kSumBytes);
    OwnedBatch& batch = batches[key];
    batch.key = key;
    batch.matrices.push_back(matrix);
  }
}

void clear_padding(std::span<const plan::Message> messages, std::span<const StagedMessage> staged,
                   std::vector<ByteRange>& clear) {
  std::set<int64_t> seen;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].padding_bytes == 0 || !seen.insert(staged[i].range.offset).second) continue;
    clear.push_back(staged[i].range);
  }
}

}  // namespace muster::engine
