#include "plan/cost_model/wave_work.h"

#include <algorithm>

#include "base/int128.h"
#include "plan/cost_model/node_sums.h"
#include "plan/replicas.h"
#include "plan/scratch.h"
#include "plan/shares.h"
#include "plan/statistics_routes.h"

namespace muster::plan {

void Flow::send(int32_t rank, int64_t near, int64_t far) {
  Traffic& traffic = ranks_[rank];
  traffic.sent_near += near;
  traffic.sent_far += far;
  traffic.sent_ns += cost_.link_ns(near, true) + cost_.link_ns(far, false);
}

void Flow::receive(int32_t rank, int64_t near, int64_t far) {
  Traffic& traffic = ranks_[rank];
  traffic.received_near += near;
  traffic.received_far += far;
  traffic.received_ns += cost_.link_ns(near, true) + cost_.link_ns(far, false);
}

void Flow::clear() {
  std::fill(ranks_.begin(), ranks_.end(), Traffic{});
  pairs.clear();
  padding = 0;
}

void Flow::count_messages() {
  std::vector<int64_t> sent(ranks_.size());
  std::vector<int64_t> received(ranks_.size());
  pairs.count(sent, received);
  for (size_t r = 0; r < ranks_.size(); ++r) {
    ranks_[r].messages = sent[r];
    ranks_[r].messages_received = received[r];
  }
}

int64_t Flow::bytes() const {
  int64_t bytes = 0;
  for (const Traffic& traffic : ranks_) bytes += traffic.sent();
  return bytes;
}

int64_t wave_bytes(const Activity& activity, const Traffic& in, const Traffic& out) {
  auto staged = [](const Traffic& t) {
    return t.sent() + t.received() + kAlignment * (t.messages + t.messages_received);
  };
  return activity.assembled + aligned(activity.sums * kSumBytes) +
         std::max(staged(in), staged(out) - activity.repeated);
}

WaveCounter::WaveCounter(const Catalog& catalog, const CostModel& cost, const Plan& plan)
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
      sends_(count_) {
  for (int32_t j = 0; j < catalog.matrix_count(); ++j) by_wave_[plan.wave[j]].push_back(j);
  for (const std::vector<int32_t>& family : plan.families) {
    family_spreads_.push_back(0);
    for (const int32_t p : family) family_spreads_.back() |= catalog.spread(p);
  }
}

void WaveCounter::count(int32_t wave) {
  wave_ = wave;
  in_.clear();
  out_.clear();
  std::fill(ranks_.begin(), ranks_.end(), Activity{});
  started_.clear();
  const Transport transport = plan_.waves[wave].transport;
  const std::map<Key, Batch> all = batches();
  note_spreads(all);
  for (const auto& [key, batch] : all) {
    if (transport == Transport::kRagged || transport == Transport::kPadded) {
      add_owned(key, batch, transport == Transport::kPadded);
      add_owned_lines(key, batch);
    } else {
      const bool reduce = transport == Transport::kGatherReduce;
      add_gathered(key.c, batch, reduce);
      reduce ? add_owned_lines(key, batch) : add_gathered_lines(key.c, batch);
    }
  }
  add_shares();
  count_batches();
  in_.count_messages();
  out_.count_messages();
  for (int32_t r = 0; r < count_; ++r) ranks_[r].elementwise_ns += held_elementwise_ns(r);
}

std::map<WaveCounter::Key, WaveCounter::Batch> WaveCounter::batches() const {
  std::map<Key, Batch> all;
  for (const int32_t j : by_wave_[wave_]) {
    ++all[{catalog_.class_of(j), in_each_replica(plan_, j)}][plan_.owner[j]].real;
  }
  for (const ZeroMatrix& zero : plan_.waves[wave_].zeros) ++all[{catalog_.class_of(zero.like)}][zero.owner].zero;
  for (auto& [key, batch] : all) {
    if (key.each) batch = with_counterparts(key.c, batch);
  }
  return all;
}

// Those in the place of each owner, in all replicas.
WaveCounter::Batch WaveCounter::with_counterparts(int32_t c, const Batch& batch) const {
  const HolderSet& set = catalog_.holders_of_class(c);
  Batch all;
  for (const auto& [rank, owned] : batch) {
    for (int32_t replica = 0; replica < set.replicas; ++replica) {
      all[set.counterpart(rank, replica)].real += owned.real;
    }
  }
  return all;
}

// What each rank sends out in a wave. In gathers, and from owners in each replica, replicas of one shard get
// different messages from one rank.
void WaveCounter::note_spreads(const std::map<Key, Batch>& batches) {
  const Transport transport = plan_.waves[wave_].transport;
  const bool gathers = transport == Transport::kGather || transport == Transport::kGatherReduce;
  std::fill(sends_.begin(), sends_.end(), gathers ? ~Spreads{0} : Spreads{0});
  for (const auto& [key, batch] : batches) {
    const MatrixClass& c = catalog_.classes()[key.c];
    for (const auto& [rank, owned] : batch) {
      const bool home = catalog_.holder_set(c).stays_home(rank, key.each);
      const bool lines_leave = !keeps_all_lines(catalog_, c, rank);
      // Lines of a matrix may be with ranks that hold none of it.
      if (home && lines_leave) sends_[rank] = ~Spreads{0};
      if (!home) sends_[rank] |= key.each || c.lines_elsewhere ? ~Spreads{0} : c.spreads;
    }
  }
  for (const ElementShare& share : plan_.shares) {
    for (size_t i = 0; i < share.ranks.size(); ++i) {
      if (share_in_wave(plan_, share, i, wave_).size() == 0) continue;
      sends_[share.ranks[i]] |= family_spreads_[share.family];
    }
  }
}

// A rank sends `bytes` to all replicas of something, of which `distinct` differ. Replicas get equal messages, which
// are staged once, unless the rank also sends them something of which they hold different parts.
void WaveCounter::send_out(int32_t rank, Spreads spreads, int64_t bytes, int64_t distinct) {
  if (catalog_.replicas_alike(spreads, sends_[rank])) ranks_[rank].repeated += bytes - distinct;
}

// To the owner and back.
void WaveCounter::add_owned(Key key, const Batch& batch, bool padded) {
  const MatrixClass& c = catalog_.classes()[key.c];
  const HolderSet& set = catalog_.holder_set(c);
  auto sent = [&](const Holder& h) { return padded ? set.largest : h.elements; };
  // Between which replicas anything travels: all of them, or each among itself.
  const bool all_in = c.all_replicas;
  const bool all_out = !key.each;
  auto split = [](const Tally& t, int32_t replica, int32_t node, bool all) {
    const int64_t near = all ? t.node(node) : t.both(replica, node);
    return std::pair{near, (all ? t.all() : t.replica(replica)) - near};
  };
  Tally elements(set.replicas, nodes_);
  for (const Holder& h : set.holders) {
    elements.add(h.replica, cost_.node(h.rank), sent(h));
  }
  Tally real(set.replicas, nodes_);
  Tally zero(set.replicas, nodes_);
  std::map<int32_t, std::vector<int32_t>> owners_by_replica;
  std::vector<int32_t> owners;
  for (const auto& [rank, owned] : batch) {
    const int32_t replica = set.source_replica(rank);
    const int32_t node = cost_.node(rank);
    real.add(replica, node, owned.real);
    zero.add(replica, node, owned.zero);
    owners.push_back(rank);
    owners_by_replica[all_in ? 0 : replica].push_back(rank);

    const Holder* mine = set.find(rank);
    const int64_t held = mine != nullptr ? sent(*mine) : 0;
    const int64_t count = owned.real + owned.zero;
    const auto [from_near, from_far] = split(elements, replica, node, all_in);
    in_.receive(rank, count * (from_near - held) * c.in_bytes, count * from_far * c.in_bytes);
    const auto [to_near, to_far] = split(elements, replica, node, all_out);
    out_.send(rank, count * (to_near - held) * c.out_bytes, count * to_far * c.out_bytes);
    const bool home = set.stays_home(rank, key.each);
    orthogonalize(rank, key.c, count, home);
    ranks_[rank].owned_ns += owned.real * cost_.owner_elementwise_ns(c);
    if (c.matrix.normuon) ranks_[rank].lines += owned.real * c.matrix.lines();
    if (all_in) ranks_[rank].momentum += owned.real * c.matrix.elements();
    assemble(rank, c, home ? Owned{0, owned.zero} : owned);
    const int64_t out = count * c.out_bytes;
    if (set.replicas > 1 && all_out)
      send_out(rank, c.spreads, out * (elements.all() - held), out * elements.replica(replica));
  }
  std::vector<int32_t> holders;
  std::map<int32_t, std::vector<int32_t>> holders_by_replica;
  for (const Holder& h : set.holders) {
    const int32_t node = cost_.node(h.rank);
    const auto own = batch.find(h.rank);
    const Owned mine = own == batch.end() ? Owned{} : own->second;
    // Matrices of other owners that this rank sends its piece of, and gets it back of: near, and all.
    auto others = [&](const Tally& t, int64_t less, bool all) {
      const auto [near, far] = split(t, h.replica, node, all);
      return std::pair{near - less, far};
    };
    const auto [real_near, real_far] = others(real, mine.real, all_in);
    const auto [zero_near, zero_far] = others(zero, mine.zero, all_in);
    const int64_t width = sent(h) * c.in_bytes;
    in_.send(h.rank, (real_near + zero_near) * width, (real_far + zero_far) * width);
    const int64_t pad = sent(h) - h.elements;
    in_.padding += ((real_near + real_far) * pad + (zero_near + zero_far) * sent(h)) * c.in_bytes;

    const auto [back_near, back_far] = others(real, mine.real, all_out);
    const auto [nil_near, nil_far] = others(zero, mine.zero, all_out);
    const int64_t back = sent(h) * c.out_bytes;
    out_.receive(h.rank, (back_near + nil_near) * back, (back_far + nil_far) * back);
    out_.padding += ((back_near + back_far) * pad + (nil_near + nil_far) * sent(h)) * c.out_bytes;

    ranks_[h.rank].zeros += (zero_near + zero_far + mine.zero) * h.elements;
    const int64_t at_home = set.stays_home(h.rank, key.each) ? mine.real : 0;
    const int64_t updated = c.each_momentum && all_out ? real.all() : real.replica(h.replica);
    if (!all_in) add_momentum(h.rank, updated * h.elements, at_home * h.elements);
    const int64_t applied = all_out ? real.all() : real.replica(h.replica);
    if (!c.weights_back) add_apply(h.rank, applied * h.elements, at_home * h.elements);
    holders.push_back(h.rank);
    holders_by_replica[all_in ? 0 : h.replica].push_back(h.rank);
  }
  for (const auto& [replica, ranks] : owners_by_replica) {
    in_.pairs.add(holders_by_replica[replica], ranks);
    if (!all_out) out_.pairs.add(ranks, holders_by_replica[replica]);
  }
  if (all_out) out_.pairs.add(owners, holders);
}

// To every holder of the owner's replica; back as a sum that is zero but for the owner's part, or not at all.
void WaveCounter::add_gathered(int32_t index, const Batch& batch, bool reduce) {
  const MatrixClass& c = catalog_.classes()[index];
  const HolderSet& set = catalog_.holder_set(c);
  Tally elements(set.replicas, nodes_);
  Tally holders(set.replicas, nodes_);
  std::map<int32_t, std::vector<int32_t>> members;
  for (const Holder& h : set.holders) {
    elements.add(h.replica, cost_.node(h.rank), h.elements);
    holders.add(h.replica, cost_.node(h.rank), 1);
    members[h.replica].push_back(h.rank);
  }
  int64_t count = 0;
  for (const auto& [rank, mine] : batch) count += mine.real;
  for (const Holder& h : set.holders) {
    const int32_t node = cost_.node(h.rank);
    const int64_t neighbours = holders.both(h.replica, node);
    const int64_t peers = holders.replica(h.replica) - 1;
    const int64_t peers_far = peers + 1 - neighbours;
    const int64_t rest = elements.replica(h.replica) - h.elements;
    const int64_t rest_far = elements.replica(h.replica) - elements.both(h.replica, node);
    // Gathers and reductions go once over each node's network links and fan out within the node.
    auto shared = [&](int64_t all, int64_t far) { return std::pair{all - far / neighbours, far / neighbours}; };
    const auto [give_near, give_far] = shared(count * peers * h.elements, count * peers_far * h.elements);
    const auto [take_near, take_far] = shared(count * rest, count * rest_far);
    in_.send(h.rank, give_near * c.in_bytes, give_far * c.in_bytes);
    in_.receive(h.rank, take_near * c.in_bytes, take_far * c.in_bytes);
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
    out_.send(h.rank, take_near * c.out_bytes, take_far * c.out_bytes);
    out_.padding += (count - mine) * rest * c.out_bytes;
    out_.receive(h.rank, give_near * c.out_bytes, give_far * c.out_bytes);
  }
  for (const auto& [replica, ranks] : members) {
    in_.pairs.add(ranks, ranks);
    if (reduce) out_.pairs.add(ranks, ranks);
  }
}

void WaveCounter::assemble(int32_t rank, const MatrixClass& c, const Owned& owned) {
  const int64_t bytes = aligned(c.matrix.elements() * byte_size(catalog_.problem().wire));
  ranks_[rank].assembled += (owned.real + owned.zero) * bytes;
  if (c.all_replicas) ranks_[rank].sums += owned.real * c.matrix.elements();
}

void WaveCounter::add_shares() {
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
      const int64_t near = (ranks_near - 1) * sizes[i];
      const int64_t far = (count - ranks_near) * sizes[i];
      const int64_t rest_near = elements_near - sizes[i];
      const int64_t rest_far = total - elements_near;
      in_.receive(rank, near * in_bytes, far * in_bytes);
      in_.send(rank, rest_near * in_bytes, rest_far * in_bytes);
      out_.send(rank, near * out_bytes, far * out_bytes);
      out_.receive(rank, rest_near * out_bytes, rest_far * out_bytes);
      ranks_[rank].elementwise_ns += cost_.memory_ns(sizes[i] * update_bytes);
      if (in_bytes > 0) ranks_[rank].sums += sizes[i];
      send_out(rank, family_spreads_[share.family], (near + far) * out_bytes, sizes[i] * out_bytes);
      ranks_[rank].elements += sizes[i];
    }
    std::vector<int32_t> ranks = share.ranks;
    std::sort(ranks.begin(), ranks.end());
    std::sort(updaters.begin(), updaters.end());
    if (in_bytes > 0) in_.pairs.add(ranks, updaters);
    out_.pairs.add(updaters, ranks);
  }
}

void WaveCounter::orthogonalize(int32_t rank, int32_t index, int64_t count, bool home) {
  const MatrixClass& c = catalog_.classes()[index];
  Activity& activity = ranks_[rank];
  (home ? activity.home_ns : activity.owned_ns) += count * (cost_.orthogonalize_ns(index) + cost_.normalize_ns(index));
  activity.workspace = std::max(activity.workspace, cost_.workspace_bytes(c.matrix));
  activity.matrices += static_cast<int32_t>(count);
  started_.push_back({rank, c.shape, home});
}

// `at_home` of the elements are of matrices that stay here: they are packed and applied with them.
void WaveCounter::add_momentum(int32_t rank, int64_t elements, int64_t at_home) {
  const int64_t home_ns = cost_.memory_ns(at_home * kMomentumBytes);
  ranks_[rank].momentum += elements;
  ranks_[rank].home_ns += home_ns;
  ranks_[rank].pack_ns += cost_.memory_ns(elements * kMomentumBytes) - home_ns;
}

void WaveCounter::add_apply(int32_t rank, int64_t elements, int64_t at_home) {
  const int64_t home_ns = cost_.memory_ns(at_home * kApplyBytes);
  ranks_[rank].home_ns += home_ns;
  ranks_[rank].apply_ns += cost_.memory_ns(elements * kApplyBytes) - home_ns;
}

void WaveCounter::count_batches() {
  std::sort(started_.begin(), started_.end());
  started_.erase(std::unique(started_.begin(), started_.end()), started_.end());
  owners_ = 0;
  for (size_t i = 0; i < started_.size(); ++i) {
    const bool same_rank = i > 0 && started_[i].rank == started_[i - 1].rank;
    Activity& activity = ranks_[started_[i].rank];
    owners_ += !same_rank;
    activity.shapes += !same_rank || started_[i].shape != started_[i - 1].shape;
    ++(started_[i].home ? activity.home_batches : activity.owned_batches);
  }
}

// Elementwise parameters that each rank updates for itself, as the plan spreads them over the waves.
int64_t WaveCounter::held_elementwise_ns(int32_t rank) const {
  const auto waves = static_cast<int64_t>(plan_.waves.size());
  const int64_t all = elementwise_ns_[rank];
  if (plan_.elementwise == ElementwiseOrder::kFirst) return wave_ == 0 ? all : 0;
  if (plan_.elementwise == ElementwiseOrder::kLast) return wave_ + 1 == waves ? all : 0;
  return base::mul_div(all, wave_ + 1, waves) - base::mul_div(all, wave_, waves);
}

}  // namespace muster::plan
