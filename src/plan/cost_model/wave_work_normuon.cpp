// The part of NorMuon's statistics in a wave, if holders keep them: what ranks exchange, and where it is assembled.
#include <algorithm>

#include "plan/cost_model/node_sums.h"
#include "plan/cost_model/wave_work.h"
#include "plan/normuon_statistics_routes.h"
#include "plan/scratch.h"

namespace muster::plan {

// Statistics that are assembled here; and the matrix with them, if it would otherwise stay at home.
void WaveWork::assemble_lines(int32_t rank, const MatrixClass& c, int64_t count, bool home) {
  if (keeps_all_lines(catalog_, c, rank)) return;
  ranks_[rank].assembled += count * aligned(c.matrix.lines() * kLineBytes);
  if (home) assemble(rank, c, {count, 0});
}

// Lines travel to the owner and back, as the elements of their matrices.
void WaveWork::add_owned_lines(Key key, const Batch& batch) {
  const MatrixClass& c = catalog_.classes()[key.c];
  const HolderSet* const keepers = catalog_.line_set(c);
  if (keepers == nullptr) return;
  const HolderSet& set = catalog_.holder_set(c);
  const bool to_all = !key.each;
  const auto back = [&](const NodeSums& sums, int32_t replica, int32_t node) {
    return to_all ? sums.of_all(node) : sums.of_replica(replica, node);
  };
  NodeSums lines(set.replicas, nodes_);
  for (const Holder& keeper : keepers->holders) lines.add(keeper.replica, cost_.node(keeper.rank), keeper.elements);
  NodeSums owned_by(set.replicas, nodes_);
  std::vector<Owner> owners;
  for (const auto& [rank, owned] : batch) {
    if (owned.real == 0) continue;
    const int32_t replica = line_source(set, *keepers, rank);
    const int32_t node = cost_.node(rank);
    owned_by.add(replica, node, owned.real);
    owners.push_back({rank, replica});
    const Holder* const mine = keepers->find(rank);
    const int64_t held = mine != nullptr ? mine->elements : 0;
    const int64_t width = owned.real * kLineBytes;
    in_.receive(rank, lines.of_replica(replica, node).without(held) * width);
    out_.send(rank, back(lines, replica, node).without(held) * width);
    assemble_lines(rank, c, owned.real, set.stays_home(rank, key.each));
    if (set.replicas > 1 && to_all) {
      add_repeated(rank, c.distributions, std::max<int64_t>(lines.all() - held - lines.replica(replica), 0) * width);
    }
  }
  for (const Holder& keeper : keepers->holders) {
    const int32_t node = cost_.node(keeper.rank);
    const auto own = batch.find(keeper.rank);
    const int64_t mine = own == batch.end() ? 0 : own->second.real;
    const int64_t width = keeper.elements * kLineBytes;
    in_.send(keeper.rank, owned_by.of_replica(keeper.replica, node).without(mine) * width);
    out_.receive(keeper.rank, back(owned_by, keeper.replica, node).without(mine) * width);
  }
  add_pairs(*keepers, owners, false, to_all);
}

// Lines travel to every holder of the replica. They travel back only to ranks that keep lines and hold no elements,
// from the first holder.
void WaveWork::add_gathered_lines(int32_t index, const Batch& batch) {
  const MatrixClass& c = catalog_.classes()[index];
  const HolderSet* const keepers = catalog_.line_set(c);
  if (keepers == nullptr) return;
  const HolderSet& set = catalog_.holder_set(c);
  int64_t count = 0;
  for (const auto& [rank, owned] : batch) count += owned.real;
  NodeSums lines(set.replicas, nodes_);
  std::map<int32_t, std::vector<int32_t>> keepers_by_replica;
  for (const Holder& keeper : keepers->holders) {
    lines.add(keeper.replica, cost_.node(keeper.rank), keeper.elements);
    keepers_by_replica[keeper.replica].push_back(keeper.rank);
  }
  NodeSums holders(set.replicas, nodes_);
  std::map<int32_t, std::vector<int32_t>> holders_by_replica;
  for (const Holder& h : set.holders) {
    holders.add(h.replica, cost_.node(h.rank), 1);
    holders_by_replica[h.replica].push_back(h.rank);
    const Holder* const mine = keepers->find(h.rank);
    const int64_t held = mine != nullptr ? mine->elements : 0;
    in_.receive(h.rank, lines.of_replica(h.replica, cost_.node(h.rank)).without(held) * (count * kLineBytes));
    assemble_lines(h.rank, c, count, false);
  }
  for (const Holder& keeper : keepers->holders) {
    const bool holds = set.find(keeper.rank) != nullptr;
    const int64_t bytes = count * keeper.elements * kLineBytes;
    const NearFar near_far = holders.of_replica(keeper.replica, cost_.node(keeper.rank));
    in_.send(keeper.rank, near_far.without(holds ? 1 : 0) * bytes);
    if (holds) continue;
    const int32_t first = holders_by_replica[keeper.replica].front();
    const bool same_node = cost_.node(first) == cost_.node(keeper.rank);
    out_.send(first, {same_node ? bytes : 0, same_node ? 0 : bytes});
    out_.receive(keeper.rank, {same_node ? bytes : 0, same_node ? 0 : bytes});
    out_.pairs.add({first}, {keeper.rank});
  }
  for (const auto& [replica, ranks] : keepers_by_replica) in_.pairs.add(ranks, holders_by_replica[replica]);
}

}  // namespace muster::plan
