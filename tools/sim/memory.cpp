#include "sim/memory.h"

#include <algorithm>
#include <map>

#include "sim/padding.h"

namespace muster::sim {
namespace {

constexpr int64_t kMomentumStateBytes = 4;
constexpr int64_t kVarianceBytes = 4;

int64_t moment_bytes(Algorithm algorithm) {
  return algorithm == Algorithm::kAdamW ? 8 : algorithm == Algorithm::kLion ? 4 : 0;
}

// Bytes that the public padded all-to-all of xtuner before #1716 holds when it orthogonalizes
// (xtuner/v1/optim/muon.py): the list of updates and its packed copy; the gathered parameter; and of its size, in one
// batch over all of its matrices, X, B @ X, a * X and their sum. The squares are left out. Weight, gradient and
// momentum of padding are zeros.
int64_t padded_batch_bytes(const plan::RankWork& activity, const plan::Traffic& in, int64_t zero_bytes) {
  const int64_t own = std::max<int64_t>(0, activity.assembled - in.received());
  return 2 * (in.sent() + own) + 5 * activity.assembled + activity.zeros * zero_bytes;
}

}  // namespace

Memory::Memory(const plan::Catalog& catalog, const Plan& plan)
    : plan_(plan),
      zero_bytes_(zero_bytes(catalog.problem())),
      ranks_(catalog.problem().ranks, Rank{.arena = plan::Arena(plan::arena_slots(plan))}) {
  const Problem& problem = catalog.problem();
  struct Kind {
    int32_t example = 0;
    int64_t bytes = 0;  // of an element, all parameters of the kind
  };
  std::map<int32_t, Kind> kinds;
  for (int32_t p = 0; p < static_cast<int32_t>(problem.parameters.size()); ++p) {
    const Parameter& parameter = problem.parameters[p];
    Kind& kind = kinds[catalog.kind_of(p)];
    kind.example = p;
    kind.bytes += byte_size(parameter.dtype) + byte_size(parameter.grad_dtype);
    if (catalog.partition(p).replicas() == 1) kind.bytes += moment_bytes(parameter.algorithm);
  }
  for (const auto& [index, kind] : kinds) {
    const layout::Partition& partition = catalog.partition(kind.example);
    for (int32_t position = 0; position < partition.positions(); ++position) {
      ranks_[partition.rank(position)].held += partition.local_elements(position) * kind.bytes;
    }
  }
  for (const ElementShare& share : plan.shares) {
    const int64_t bytes = moment_bytes(problem.parameters[plan.families[share.family][0]].algorithm);
    for (size_t i = 0; i < share.ranks.size(); ++i) {
      ranks_[share.ranks[i]].held += (share.cuts[i + 1] - share.cuts[i]) * bytes;
    }
  }
}

void Memory::add(int32_t wave, int32_t rank, const plan::RankWork& activity, const plan::Traffic& in,
                 const plan::Traffic& out) {
  Rank& r = ranks_[rank];
  r.held += activity.momentum * kMomentumStateBytes + activity.lines * kVarianceBytes;
  r.arena.add(static_cast<size_t>(wave), plan::wave_bytes(activity, in, out));
  r.workspace = std::max(r.workspace, activity.workspace);
  r.peers_batch = std::max(r.peers_batch, padded_batch_bytes(activity, in, zero_bytes_));
}

int64_t Memory::scratch_bytes_max() const {
  int64_t most = 0;
  for (const Rank& rank : ranks_) most = std::max(most, rank.scratch());
  return most;
}

int64_t Memory::bytes_max() const {
  int64_t most = 0;
  for (const Rank& rank : ranks_) {
    most = std::max(most, rank.held + (plan_.strategy == Strategy::kChunked ? rank.peers_batch : rank.scratch()));
  }
  return most;
}

}  // namespace muster::sim
