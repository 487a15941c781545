// What ranks exchange of NorMuon's statistics, and where they assemble it, if holders keep them.
#include <algorithm>

#include "plan/cost_model/node_sums.h"
#include "plan/cost_model/wave_work.h"
#include "plan/scratch.h"
#include "plan/statistics_routes.h"

namespace muster::plan {

// Statistics that are put together here; and the matrix with them, if it would otherwise stay at home.
void WaveCounter::assemble_lines(int32_t rank, const MatrixClass& c, int64_t count, bool home) {
  if (keeps_all_lines(catalog_, c, rank)) return;
  ranks_[rank].assembled += count * aligned(c.matrix.lines() * kLineBytes);
  if (home) assemble(rank, c, {count, 0});
}

// To the owner and back, as the elements of their matrices.
void WaveCounter::add_owned_lines(Key key, const Batch& batch) {
  const MatrixClass& c = catalog_.classes()[key.c];
  const HolderSet* const keepers = catalog_.line_set(c);
  if (keepers == nullptr) return;
  const HolderSet& set = catalog_.holder_set(c);
  const bool to_all = !key.each;
  Tally lines(set.replicas, nodes_);
  for (const Holder& keeper : keepers->holders) lines.add(keeper.replica, cost_.node(keeper.rank), keeper.elements);
  Tally owned_by(set.replicas, nodes_);
  std::map<int32_t, std::vector<int32_t>> owners_by_replica;
  std::vector<int32_t> owners;
  for (const auto& [rank, owned] : batch) {
    if (owned.real == 0) continue;
    const int32_t replica = line_source(set, *keepers, rank);
    const int32_t node = cost_.node(rank);
    owned_by.add(replica, node, owned.real);
    owners.push_back(rank);
    owners_by_replica[replica].push_back(rank);
    const Holder* const mine = keepers->find(rank);
    const int64_t held = mine != nullptr ? mine->elements : 0;
    const int64_t width = owned.real * kLineBytes;
    const int64_t from_near = lines.both(replica, node);
    in_.receive(rank, width * (from_near - held), width * (lines.replica(replica) - from_near));
    const int64_t to_near = to_all ? lines.node(node) : from_near;
    const int64_t to = to_all ? lines.all() : lines.replica(replica);
    out_.send(rank, width * (to_near - held), width * (to - to_near));
    assemble_lines(rank, c, owned.real, set.stays_home(rank, key.each));
    if (set.replicas > 1 && to_all) {
      send_out(rank, c.spreads, std::max(to - held, lines.replica(replica)) * width, lines.replica(replica) * width);
    }
  }
  std::map<int32_t, std::vector<int32_t>> keepers_by_replica;
  std::vector<int32_t> all;
  for (const Holder& keeper : keepers->holders) {
    const int32_t node = cost_.node(keeper.rank);
    const auto own = batch.find(keeper.rank);
    const int64_t mine = own == batch.end() ? 0 : own->second.real;
    const int64_t width = keeper.elements * kLineBytes;
    const int64_t near = owned_by.both(keeper.replica, node);
    in_.send(keeper.rank, width * (near - mine), width * (owned_by.replica(keeper.replica) - near));
    const int64_t back_near = to_all ? owned_by.node(node) : near;
    const int64_t back = to_all ? owned_by.all() : owned_by.replica(keeper.replica);
    out_.receive(keeper.rank, width * (back_near - mine), width * (back - back_near));
    keepers_by_replica[keeper.replica].push_back(keeper.rank);
    all.push_back(keeper.rank);
  }
  for (const auto& [replica, ranks] : owners_by_replica) {
    in_.pairs.add(keepers_by_replica[replica], ranks);
    if (!to_all) out_.pairs.add(ranks, keepers_by_replica[replica]);
  }
  if (to_all) out_.pairs.add(owners, all);
}

// To every holder of the replica. Back only to ranks that keep lines and hold no elements, from the first holder.
void WaveCounter::add_gathered_lines(int32_t index, const Batch& batch) {
  const MatrixClass& c = catalog_.classes()[index];
  const HolderSet* const keepers = catalog_.line_set(c);
  if (keepers == nullptr) return;
  const HolderSet& set = catalog_.holder_set(c);
  int64_t count = 0;
  for (const auto& [rank, owned] : batch) count += owned.real;
  Tally lines(set.replicas, nodes_);
  std::map<int32_t, std::vector<int32_t>> keepers_by_replica;
  for (const Holder& keeper : keepers->holders) {
    lines.add(keeper.replica, cost_.node(keeper.rank), keeper.elements);
    keepers_by_replica[keeper.replica].push_back(keeper.rank);
  }
  Tally holders(set.replicas, nodes_);
  std::map<int32_t, std::vector<int32_t>> holders_by_replica;
  for (const Holder& h : set.holders) {
    holders.add(h.replica, cost_.node(h.rank), 1);
    holders_by_replica[h.replica].push_back(h.rank);
    const Holder* const mine = keepers->find(h.rank);
    const int64_t near = lines.both(h.replica, cost_.node(h.rank));
    const int64_t held = mine != nullptr ? mine->elements : 0;
    in_.receive(h.rank, count * kLineBytes * (near - held), count * kLineBytes * (lines.replica(h.replica) - near));
    assemble_lines(h.rank, c, count, false);
  }
  for (const Holder& keeper : keepers->holders) {
    const bool holds = set.find(keeper.rank) != nullptr;
    const int64_t bytes = count * keeper.elements * kLineBytes;
    const int64_t near = holders.both(keeper.replica, cost_.node(keeper.rank));
    in_.send(keeper.rank, bytes * (near - (holds ? 1 : 0)), bytes * (holders.replica(keeper.replica) - near));
    if (holds) continue;
    const int32_t first = holders_by_replica[keeper.replica].front();
    const bool same_node = cost_.node(first) == cost_.node(keeper.rank);
    out_.send(first, same_node ? bytes : 0, same_node ? 0 : bytes);
    out_.receive(keeper.rank, same_node ? bytes : 0, same_node ? 0 : bytes);
    out_.pairs.add({first}, {keeper.rank});
  }
  for (const auto& [replica, ranks] : keepers_by_replica) in_.pairs.add(ranks, holders_by_replica[replica]);
}

}  // namespace muster::plan
