#include "plan/cost_model/wave_work.h"

#include <algorithm>

#include "base/int128.h"
#include "plan/element_shares.h"
#include "plan/normuon_statistics_routes.h"
#include "plan/replicas.h"
#include "plan/scratch.h"

namespace muster::plan {

int64_t wave_bytes(const RankWork& work, const Traffic& in, const Traffic& out) {
  auto staged = [](const Traffic& t) {
    return t.sent() + t.received() + kAlignment * (t.messages + t.messages_received);
  };
  return work.assembled + aligned(work.sums * kSumBytes) + std::max(staged(in), staged(out) - work.repeated);
}

WaveWork::WaveWork(const Catalog& catalog, const CostModel& cost, const Plan& plan)
    : catalog_(catalog),
      cost_(cost),
      plan_(plan),
      count_(catalog.problem().ranks),
      nodes_(cost.node(count_ - 1) + 1),
      by_wave_(plan.waves.size()),
      elementwise_ns_(cost.held_elementwise_ns()),
      in_(cost, count_),
      out_(cost, count_),
      ranks_(count_),
      sent_(count_) {
  for (int32_t j = 0; j < catalog.matrix_count(); ++j) by_wave_[plan.wave[j]].push_back(j);
  for (const std::vector<int32_t>& family : plan.families) {
    family_distributions_.push_back(0);
    for (const int32_t p : family) family_distributions_.back() |= catalog.distribution(p);
  }
}

void WaveWork::count(int32_t wave) {
  wave_ = wave;
  in_.clear();
  out_.clear();
  std::fill(ranks_.begin(), ranks_.end(), RankWork{});
  started_.clear();
  const Transport transport = plan_.waves[wave].transport;
  const std::map<Key, Batch> all = batches();
  note_sent(all);
  for (const auto& [key, batch] : all) {
    if (transport == Transport::kRagged || transport == Transport::kPadded) {
      add_owned(key, batch, transport == Transport::kPadded);
      add_owned_lines(key, batch);
    } else {
      const bool reduce = transport == Transport::kGatherReduce;
      add_gathered(key, batch, reduce);
      reduce ? add_owned_lines(key, batch) : add_gathered_lines(key.c, batch);
    }
  }
  add_shares();
  count_batches();
  in_.count_messages();
  out_.count_messages();
  for (int32_t r = 0; r < count_; ++r) ranks_[r].elementwise_ns += held_elementwise_ns(r);
}

std::map<WaveWork::Key, WaveWork::Batch> WaveWork::batches() const {
  std::map<Key, Batch> all;
  for (const int32_t j : by_wave_[wave_]) {
    ++all[{catalog_.class_of(j), in_each_replica(plan_, j)}][plan_.owner[j]].real;
  }
  for (const ZeroMatrix& zero : plan_.waves[wave_].zeros) {
    ++all[{catalog_.class_of(zero.like), in_each_replica(plan_, zero.like)}][zero.owner].zero;
  }
  for (auto& [key, batch] : all) {
    if (key.each) batch = with_counterparts(key.c, batch);
  }
  return all;
}

// The owners in all replicas: each stands where the owner stands in its own.
WaveWork::Batch WaveWork::with_counterparts(int32_t c, const Batch& batch) const {
  const HolderSet& set = catalog_.holders_of_class(c);
  Batch all;
  for (const auto& [rank, owned] : batch) {
    for (int32_t replica = 0; replica < set.replicas; ++replica) {
      Owned& counterpart = all[set.counterpart(rank, replica)];
      counterpart.real += owned.real;
      counterpart.zero += owned.zero;
    }
  }
  return all;
}

// Notes what each rank sends out in the wave. In gathers, and from owners in each replica, one rank sends different
// messages to the replicas of a shard.
void WaveWork::note_sent(const std::map<Key, Batch>& batches) {
  const Transport transport = plan_.waves[wave_].transport;
  const bool gathers = transport == Transport::kGather || transport == Transport::kGatherReduce;
  std::fill(sent_.begin(), sent_.end(), gathers ? ~Distributions{0} : Distributions{0});
  for (const auto& [key, batch] : batches) {
    const MatrixClass& c = catalog_.classes()[key.c];
    for (const auto& [rank, owned] : batch) {
      const bool home = catalog_.holder_set(c).stays_home(rank, key.each);
      const bool lines_leave = !keeps_all_lines(catalog_, c, rank);
      // Lines of a matrix may be kept by ranks that hold none of it.
      if (home && lines_leave) sent_[rank] = ~Distributions{0};
      if (!home) sent_[rank] |= key.each || c.lines_elsewhere ? ~Distributions{0} : c.distributions;
    }
  }
  for (const ElementShare& share : plan_.shares) {
    for (size_t i = 0; i < share.ranks.size(); ++i) {
      if (share_in_wave(plan_, share, i, wave_).size() == 0) continue;
      sent_[share.ranks[i]] |= family_distributions_[share.family];
    }
  }
}

// A rank sends to all replicas, and `bytes` of that repeat what it sends to another replica. Equal messages are staged
// once; replicas get equal messages unless the rank also sends them something of which they hold different parts.
void WaveWork::add_repeated(int32_t rank, Distributions distributions, int64_t bytes) {
  if (catalog_.replicas_alike(distributions, sent_[rank])) ranks_[rank].repeated += bytes;
}

// Elements travel to the owner and back.
void WaveWork::add_owned(Key key, const Batch& batch, bool padded) {
  const MatrixClass& c = catalog_.classes()[key.c];
  const HolderSet& set = catalog_.holder_set(c);
  const NodeSums none(set.replicas, nodes_);
  OwnedBatch all{.key = key, .c = c, .set = set, .padded = padded, .elements = none, .real = none, .zero = none};
  for (const Holder& h : set.holders) all.elements.add(h.replica, cost_.node(h.rank), all.sent(h));
  std::vector<Owner> owners;
  for (const auto& [rank, owned] : batch) {
    owners.push_back({rank, set.source_replica(rank)});
    all.real.add(owners.back().replica, cost_.node(rank), owned.real);
    all.zero.add(owners.back().replica, cost_.node(rank), owned.zero);
  }
  for (const auto& [rank, owned] : batch) add_owner(all, rank, owned);
  for (const Holder& h : set.holders) {
    const auto own = batch.find(h.rank);
    add_holder(all, h, own == batch.end() ? Owned{} : own->second);
  }
  add_pairs(set, owners, all.all_in(), all.all_out());
}

void WaveWork::add_owner(const OwnedBatch& batch, int32_t rank, const Owned& owned) {
  const MatrixClass& c = batch.c;
  const int32_t replica = batch.set.source_replica(rank);
  const int32_t node = cost_.node(rank);
  const Holder* mine = batch.set.find(rank);
  const int64_t held = mine != nullptr ? batch.sent(*mine) : 0;
  const int64_t count = owned.real + owned.zero;
  in_.receive(rank, batch.in(batch.elements, replica, node).without(held) * (count * c.in_bytes));
  out_.send(rank, batch.out(batch.elements, replica, node).without(held) * (count * c.out_bytes));
  if (batch.set.replicas > 1 && batch.all_out()) {
    const int64_t others = batch.elements.all() - held - batch.elements.replica(replica);
    add_repeated(rank, c.distributions, count * c.out_bytes * others);
  }

  const bool home = batch.set.stays_home(rank, batch.key.each);
  orthogonalize(rank, batch.key.c, count, home);
  assemble(rank, c, home ? Owned{0, owned.zero} : owned);
  RankWork& work = ranks_[rank];
  work.owned_ns += owned.real * cost_.owner_elementwise_ns(c);
  if (c.matrix.normuon) work.lines += owned.real * c.matrix.lines();
  if (batch.all_in()) work.momentum += owned.real * c.matrix.elements();
}

// `own` are the matrices that the holder owns itself.
void WaveWork::add_holder(const OwnedBatch& batch, const Holder& h, const Owned& own) {
  const MatrixClass& c = batch.c;
  const int32_t node = cost_.node(h.rank);
  const int64_t sent = batch.sent(h);
  const int64_t pad = sent - h.elements;
  const NearFar real_in = batch.in(batch.real, h.replica, node).without(own.real);
  const NearFar zero_in = batch.in(batch.zero, h.replica, node).without(own.zero);
  in_.send(h.rank, (real_in + zero_in) * (sent * c.in_bytes));
  in_.padding += (real_in.sum() * pad + zero_in.sum() * sent) * c.in_bytes;
  const NearFar real_out = batch.out(batch.real, h.replica, node).without(own.real);
  const NearFar zero_out = batch.out(batch.zero, h.replica, node).without(own.zero);
  out_.receive(h.rank, (real_out + zero_out) * (sent * c.out_bytes));
  out_.padding += (real_out.sum() * pad + zero_out.sum() * sent) * c.out_bytes;

  ranks_[h.rank].zeros += (zero_in.sum() + own.zero) * h.elements;
  const int64_t at_home = batch.set.stays_home(h.rank, batch.key.each) ? own.real : 0;
  const int64_t of_replica = batch.real.replica(h.replica);
  const int64_t applied = batch.all_out() ? batch.real.all() : of_replica;
  const int64_t updated = c.each_momentum ? applied : of_replica;
  if (!batch.all_in()) add_momentum(h.rank, updated * h.elements, at_home * h.elements);
  if (!c.weights_back) add_apply(h.rank, applied * h.elements, at_home * h.elements);
}

// Owners receive from the holders in the replica that sends to them, or in all replicas; they return likewise.
void WaveWork::add_pairs(const HolderSet& holders, const std::vector<Owner>& owners, bool all_in, bool all_out) {
  using ByReplica = std::map<int32_t, std::vector<int32_t>>;
  const auto group = [](const auto& members, bool all) {
    ByReplica ranks;
    for (const auto& member : members) ranks[all ? 0 : member.replica].push_back(member.rank);
    return ranks;
  };
  ByReplica holders_in = group(holders.holders, all_in);
  for (const auto& [replica, ranks] : group(owners, all_in)) in_.pairs.add(holders_in[replica], ranks);
  ByReplica holders_out = all_out == all_in ? std::move(holders_in) : group(holders.holders, all_out);
  for (const auto& [replica, ranks] : group(owners, all_out)) out_.pairs.add(ranks, holders_out[replica]);
}

// Elements travel to every holder in the owner's replica. With `reduce` updates return as a sum to which only the owner
// contributes other than zeros, or the owner in each replica; without it, nothing returns.
void WaveWork::add_gathered(Key key, const Batch& batch, bool reduce) {
  const int32_t index = key.c;
  const MatrixClass& c = catalog_.classes()[index];
  const HolderSet& set = catalog_.holder_set(c);
  NodeSums elements(set.replicas, nodes_);
  NodeSums holders(set.replicas, nodes_);
  std::map<int32_t, std::vector<int32_t>> members;
  for (const Holder& h : set.holders) {
    elements.add(h.replica, cost_.node(h.rank), h.elements);
    holders.add(h.replica, cost_.node(h.rank), 1);
    members[h.replica].push_back(h.rank);
  }
  int64_t count = 0;
  for (const auto& [rank, mine] : batch) count += mine.real;
  if (key.each) count /= set.replicas;  // the batch has them in each
  for (const Holder& h : set.holders) {
    const int32_t node = cost_.node(h.rank);
    const NearFar neighbours = holders.of_replica(h.replica, node);
    const NearFar rest = elements.of_replica(h.replica, node).without(h.elements);
    // Gathers and reductions go once over each node's network links and fan out within the node.
    const auto shared = [&](NearFar bytes) {
      const int64_t far = bytes.far / neighbours.near;
      return NearFar{bytes.sum() - far, far};
    };
    const NearFar give = shared(neighbours.without(1) * (count * h.elements));
    const NearFar take = shared(rest * count);
    in_.send(h.rank, give * c.in_bytes);
    in_.receive(h.rank, take * c.in_bytes);
    add_momentum(h.rank, count * h.elements, 0);
    add_apply(h.rank, count * h.elements, 0);
    if (set.holders.size() > 1) assemble(h.rank, c, {count, 0});
    const auto own = batch.find(h.rank);
    const int64_t mine = own == batch.end() ? 0 : own->second.real;
    if (!reduce) {
      orthogonalize(h.rank, index, count, false);
      continue;
    }
    if (mine > 0) orthogonalize(h.rank, index, mine, false);
    out_.send(h.rank, take * c.out_bytes);
    out_.padding += (count - mine) * rest.sum() * c.out_bytes;
    out_.receive(h.rank, give * c.out_bytes);
  }
  for (const auto& [replica, ranks] : members) {
    in_.pairs.add(ranks, ranks);
    if (reduce) out_.pairs.add(ranks, ranks);
  }
}

void WaveWork::assemble(int32_t rank, const MatrixClass& c, const Owned& owned) {
  const int64_t bytes = aligned(c.matrix.elements() * byte_size(catalog_.problem().wire));
  ranks_[rank].assembled += (owned.real + owned.zero) * bytes;
  if (c.all_replicas) ranks_[rank].sums += owned.real * c.matrix.elements();
}

void WaveWork::add_shares() {
  const Problem& problem = catalog_.problem();
  for (const ElementShare& share : plan_.shares) {
    const std::vector<int32_t>& family = plan_.families[share.family];
    const int64_t in_bytes = share_in_bytes(problem, family);
    const int64_t out_bytes = share_out_bytes(problem, family);
    const int64_t update_bytes = cost_.elementwise_bytes(problem.parameters[family[0]].algorithm);
    std::map<int32_t, std::pair<int64_t, int64_t>> by_node;  // ranks, elements
    int64_t total = 0;
    std::vector<int64_t> sizes;
    std::vector<int32_t> updaters;
    for (size_t i = 0; i < share.ranks.size(); ++i) {
      sizes.push_back(share_in_wave(plan_, share, i, wave_).size());
      if (sizes[i] > 0) updaters.push_back(share.ranks[i]);
      auto& [ranks, elements] = by_node[cost_.node(share.ranks[i])];
      ++ranks;
      elements += sizes[i];
      total += sizes[i];
    }
    if (total == 0) continue;
    const auto count = static_cast<int64_t>(share.ranks.size());
    for (size_t i = 0; i < share.ranks.size(); ++i) {
      const int32_t rank = share.ranks[i];
      const auto [ranks_near, elements_near] = by_node[cost_.node(rank)];
      const NearFar mine = NearFar{ranks_near - 1, count - ranks_near} * sizes[i];  // for the other replicas
      const NearFar rest{elements_near - sizes[i], total - elements_near};          // that they update
      in_.receive(rank, mine * in_bytes);
      in_.send(rank, rest * in_bytes);
      out_.send(rank, mine * out_bytes);
      out_.receive(rank, rest * out_bytes);
      ranks_[rank].elementwise_ns += cost_.memory_ns(sizes[i] * update_bytes);
      if (in_bytes > 0) ranks_[rank].sums += sizes[i];
      add_repeated(rank, family_distributions_[share.family], (mine.sum() - sizes[i]) * out_bytes);
      ranks_[rank].elements += sizes[i];
    }
    std::vector<int32_t> ranks = share.ranks;
    std::sort(ranks.begin(), ranks.end());
    std::sort(updaters.begin(), updaters.end());
    if (in_bytes > 0) in_.pairs.add(ranks, updaters);
    out_.pairs.add(updaters, ranks);
  }
}

void WaveWork::orthogonalize(int32_t rank, int32_t index, int64_t count, bool home) {
  const MatrixClass& c = catalog_.classes()[index];
  RankWork& work = ranks_[rank];
  (home ? work.home_ns : work.owned_ns) += count * (cost_.orthogonalize_ns(index) + cost_.normalize_ns(index));
  work.workspace = std::max(work.workspace, cost_.workspace_bytes(c.matrix));
  work.matrices += static_cast<int32_t>(count);
  started_.push_back({rank, c.shape, home});
}

// `at_home` of the elements are of matrices that stay here: they are packed and applied with them.
void WaveWork::add_momentum(int32_t rank, int64_t elements, int64_t at_home) {
  const int64_t home_ns = cost_.memory_ns(at_home * kMomentumBytes);
  ranks_[rank].momentum += elements;
  ranks_[rank].home_ns += home_ns;
  ranks_[rank].pack_ns += cost_.memory_ns(elements * kMomentumBytes) - home_ns;
}

void WaveWork::add_apply(int32_t rank, int64_t elements, int64_t at_home) {
  const int64_t home_ns = cost_.memory_ns(at_home * kApplyBytes);
  ranks_[rank].home_ns += home_ns;
  ranks_[rank].apply_ns += cost_.memory_ns(elements * kApplyBytes) - home_ns;
}

void WaveWork::count_batches() {
  std::sort(started_.begin(), started_.end());
  started_.erase(std::unique(started_.begin(), started_.end()), started_.end());
  owners_ = 0;
  for (size_t i = 0; i < started_.size(); ++i) {
    const bool same_rank = i > 0 && started_[i].rank == started_[i - 1].rank;
    RankWork& work = ranks_[started_[i].rank];
    owners_ += !same_rank;
    work.shapes += !same_rank || started_[i].shape != started_[i - 1].shape;
    ++(started_[i].home ? work.home_batches : work.owned_batches);
  }
}

// Elementwise parameters that each rank updates for itself, as the plan spreads them over the waves.
int64_t WaveWork::held_elementwise_ns(int32_t rank) const {
  const auto waves = static_cast<int64_t>(plan_.waves.size());
  const int64_t all = elementwise_ns_[rank];
  if (plan_.elementwise == ElementwiseOrder::kFirst) return wave_ == 0 ? all : 0;
  if (plan_.elementwise == ElementwiseOrder::kLast) return wave_ + 1 == waves ? all : 0;
  return base::mul_div(all, wave_ + 1, waves) - base::mul_div(all, wave_, waves);
}

}  // namespace muster::plan
