#include "plan/account.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>

#include "plan/messages.h"
#include "plan/replicas.h"
#include "plan/scratch.h"
#include "plan/shares.h"
#include "plan/tally.h"
#include "plan/wide.h"

namespace muster::plan {

namespace {

// One direction of one wave: what every rank sends and receives.
class Flow {
 public:
  Flow(const CostModel& cost, int32_t ranks) : pairs(ranks), cost_(cost), ranks_(ranks) {}

  void send(int32_t rank, int64_t near, int64_t far) { add(ranks_[rank].sent, ranks_[rank].sent_ns, near, far); }
  void receive(int32_t rank, int64_t near, int64_t far) {
    add(ranks_[rank].received, ranks_[rank].received_ns, near, far);
  }

  struct Rank {
    int64_t sent = 0;
    int64_t received = 0;
    int64_t sent_ns = 0;
    int64_t received_ns = 0;
    int64_t messages = 0;  // sent
    int64_t messages_received = 0;
    int64_t start_ns = 0;  // of the exchange and its messages
    int64_t ns = 0;        // the rank's part in it
  };
  // Ends the wave; afterwards at() is what each rank did. Returns the bytes that moved.
  int64_t close() {
    std::vector<int64_t> sent(ranks_.size());
    std::vector<int64_t> received(ranks_.size());
    pairs.count(sent, received);
    int64_t bytes = 0;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      Rank& rank = ranks_[r];
      rank.messages = sent[r];
      rank.messages_received = received[r];
      if (rank.sent + rank.received == 0) continue;
      rank.start_ns = cost_.table().exchange_ns + cost_.table().message_ns * std::max(sent[r], received[r]);
      rank.ns = rank.start_ns + std::max(rank.sent_ns, rank.received_ns);
      bytes += rank.sent;
    }
    return bytes;
  }
  const Rank& at(int32_t rank) const { return ranks_[rank]; }
  void clear() {
    std::fill(ranks_.begin(), ranks_.end(), Rank{});
    padding = 0;
  }

  MessageCounter pairs;
  int64_t padding = 0;

 private:
  void add(int64_t& bytes, int64_t& ns, int64_t near, int64_t far) {
    bytes += near + far;
    ns += cost_.link_ns(near, true) + cost_.link_ns(far, false);
  }
  const CostModel& cost_;
  std::vector<Rank> ranks_;
};

constexpr size_t kDirections = 2;

class Accountant {
 public:
  Accountant(const Catalog& catalog, const CostModel& cost, const Plan& plan)
      : catalog_(catalog),
        cost_(cost),
        plan_(plan),
        count_(catalog.problem().ranks),
        nodes_(cost.node(count_ - 1) + 1),
        in_(cost, count_),
        out_(cost, count_),
        work_(count_),
        elementwise_ns_(cost.held_elementwise_ns()),
        slots_(count_),
        workspace_(count_),
        links_(count_) {
    summary_.ranks.resize(count_);
    for (const std::vector<int32_t>& family : plan.families) {
      family_spreads_.push_back(0);
      for (const int32_t p : family) family_spreads_.back() |= catalog.spread(p);
    }
  }

  PlanSummary run() {
    std::vector<std::vector<int32_t>> by_wave(plan_.waves.size());
    for (int32_t j = 0; j < catalog_.matrix_count(); ++j) by_wave[plan_.wave[j]].push_back(j);
    for (size_t w = 0; w < by_wave.size(); ++w) add_wave(static_cast<int32_t>(w), by_wave[w]);
    finish();
    return std::move(summary_);
  }

 private:
  // Matrices of one class in one wave, by owner.
  struct Owned {
    int64_t real = 0;
    int64_t zero = 0;
  };
  using Batch = std::map<int32_t, Owned>;
  // A class, and whether each replica has an owner.
  struct Key {
    int32_t c = 0;
    bool each = false;
    auto operator<=>(const Key&) const = default;
  };
  // What a rank does in a wave beside sending.
  struct Work {
    int64_t compute = 0;
    int64_t assembled = 0;  // bytes of matrices put together here
    int64_t sums = 0;       // elements summed over replicas
    Spreads sends = 0;      // of what goes out
    int64_t repeated = 0;   // bytes that go out in messages that are staged for another replica already
  };

  void add_wave(int32_t w, const std::vector<int32_t>& matrices) {
    const Wave& wave = plan_.waves[w];
    in_.clear();
    out_.clear();
    std::fill(work_.begin(), work_.end(), Work{});
    started_.clear();
    std::map<Key, Batch> batches;
    for (const int32_t j : matrices) ++batches[{catalog_.class_of(j), in_each_replica(plan_, j)}][plan_.owner[j]].real;
    for (const ZeroMatrix& zero : wave.zeros) ++batches[{catalog_.class_of(zero.like)}][zero.owner].zero;
    for (auto& [key, batch] : batches) {
      if (key.each) batch = with_counterparts(key.c, batch);
    }
    note_spreads(w, batches);
    for (const auto& [key, batch] : batches) {
      if (wave.transport == Transport::kRagged || wave.transport == Transport::kPadded) {
        add_owned(key, batch, wave.transport == Transport::kPadded);
      } else {
        add_gathered(key.c, batch, wave.transport == Transport::kGatherReduce);
      }
    }
    add_shares(w);
    close_wave(w, matrices, wave);
  }

  // Those in the place of each owner, in all replicas.
  Batch with_counterparts(int32_t c, const Batch& batch) const {
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
  void note_spreads(int32_t w, const std::map<Key, Batch>& batches) {
    const Transport transport = plan_.waves[w].transport;
    const bool gathers = transport == Transport::kGather || transport == Transport::kGatherReduce;
    for (Work& work : work_) work.sends = gathers ? ~Spreads{0} : 0;
    for (const auto& [key, batch] : batches) {
      const MatrixClass& c = catalog_.classes()[key.c];
      for (const auto& [rank, owned] : batch) {
        if (catalog_.holder_set(c).stays_home(rank, key.each)) continue;
        work_[rank].sends |= key.each ? ~Spreads{0} : c.spreads;
      }
    }
    for (const ElementShare& share : plan_.shares) {
      for (size_t i = 0; i < share.ranks.size(); ++i) {
        if (share_in_wave(plan_, share, i, w).size() == 0) continue;
        work_[share.ranks[i]].sends |= family_spreads_[share.family];
      }
    }
  }

  // A rank sends `bytes` to all replicas of something, of which `distinct` differ. Replicas get equal messages, which
  // are staged once, unless the rank also sends them something of which they hold different parts.
  void send_out(int32_t rank, Spreads spreads, int64_t bytes, int64_t distinct) {
    if (catalog_.replicas_alike(spreads, work_[rank].sends)) work_[rank].repeated += bytes - distinct;
  }

  // To the owner and back.
  void add_owned(Key key, const Batch& batch, bool padded) {
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
      orthogonalize(rank, key.c, count);
      work_[rank].compute += owned.real * cost_.owner_elementwise_ns(c);
      if (!set.stays_home(rank, key.each)) assemble(rank, c, owned);
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

      if (!all_in) {
        work_[h.rank].compute += cost_.memory_ns(real.replica(h.replica) * h.elements * kMomentumBytes);
      }
      const int64_t applied = all_out ? real.all() : real.replica(h.replica);
      if (!c.weights_back) work_[h.rank].compute += cost_.memory_ns(applied * h.elements * kApplyBytes);
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
  void add_gathered(int32_t index, const Batch& batch, bool reduce) {
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
      Work& work = work_[h.rank];
      work.compute += cost_.memory_ns(count * h.elements * (kMomentumBytes + kApplyBytes));
      if (set.holders.size() > 1) assemble(h.rank, c, {count, 0});
      const auto own = batch.find(h.rank);
      const int64_t mine = own == batch.end() ? 0 : own->second.real;
      if (!reduce) {
        orthogonalize(h.rank, index, count);
        continue;
      }
      if (mine > 0) orthogonalize(h.rank, index, mine);
      out_.send(h.rank, take_near * c.out_bytes, take_far * c.out_bytes);
      out_.padding += (count - mine) * rest * c.out_bytes;
      out_.receive(h.rank, give_near * c.out_bytes, give_far * c.out_bytes);
    }
    for (const auto& [replica, ranks] : members) {
      in_.pairs.add(ranks, ranks);
      if (reduce) out_.pairs.add(ranks, ranks);
    }
  }

  void assemble(int32_t rank, const MatrixClass& c, const Owned& owned) {
    const int64_t bytes = aligned(c.matrix.elements() * byte_size(catalog_.problem().wire));
    work_[rank].assembled += (owned.real + owned.zero) * bytes;
    if (c.all_replicas) work_[rank].sums += owned.real * c.matrix.elements();
  }

  void add_shares(int32_t w) {
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
        sizes.push_back(share_in_wave(plan_, share, i, w).size());
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
        work_[rank].compute += cost_.memory_ns(sizes[i] * update_bytes);
        if (in_bytes > 0) work_[rank].sums += sizes[i];
        send_out(rank, family_spreads_[share.family], (near + far) * out_bytes, sizes[i] * out_bytes);
        summary_.ranks[rank].elements += sizes[i];
      }
      std::vector<int32_t> ranks = share.ranks;
      std::sort(ranks.begin(), ranks.end());
      std::sort(updaters.begin(), updaters.end());
      if (in_bytes > 0) in_.pairs.add(ranks, updaters);
      out_.pairs.add(updaters, ranks);
    }
  }

  void orthogonalize(int32_t rank, int32_t index, int64_t count) {
    const MatrixClass& c = catalog_.classes()[index];
    work_[rank].compute += count * (cost_.orthogonalize_ns(index) + cost_.normalize_ns(index));
    workspace_[rank] = std::max(workspace_[rank], cost_.workspace_bytes(c.matrix));
    started_.push_back({rank, c.shape});
    summary_.ranks[rank].matrices += static_cast<int32_t>(count);
  }

  void close_wave(int32_t w, const std::vector<int32_t>& matrices, const Wave& wave) {
    std::sort(started_.begin(), started_.end());
    started_.erase(std::unique(started_.begin(), started_.end()), started_.end());
    int32_t owners = 0;
    for (size_t i = 0; i < started_.size(); ++i) {
      work_[started_[i].first].compute += cost_.table().batch_ns;
      owners += i == 0 || started_[i].first != started_[i - 1].first;
    }
    PlanSummary::WaveTotal total;
    total.matrices = static_cast<int32_t>(matrices.size());
    total.zeros = static_cast<int32_t>(wave.zeros.size());
    total.owners = owners;
    total.bytes_in = in_.close();
    total.bytes_out = out_.close();
    total.collectives = (total.bytes_in > 0) + (total.bytes_out > 0);
    total.padding_bytes = in_.padding + out_.padding;
    for (int32_t r = 0; r < count_; ++r) {
      Work& work = work_[r];
      work.compute += elementwise_in_wave(r, w);
      PlanSummary::Rank& rank = summary_.ranks[r];
      rank.compute_ns += work.compute;
      for (size_t d = 0; d < kDirections; ++d) {
        const Flow::Rank& flow = (d == 0 ? in_ : out_).at(r);
        rank.exchange_ns += flow.start_ns;
        links_[r][d].first += flow.sent_ns;
        links_[r][d].second += flow.received_ns;
      }
      rank.bytes_sent += in_.at(r).sent + out_.at(r).sent;
      rank.bytes_received += in_.at(r).received + out_.at(r).received;
      rank.messages_sent += in_.at(r).messages + out_.at(r).messages;
      total.in_ns = std::max(total.in_ns, in_.at(r).ns);
      total.compute_ns = std::max(total.compute_ns, work.compute);
      total.out_ns = std::max(total.out_ns, out_.at(r).ns);
      int64_t& slot = slots_[r][static_cast<size_t>(w) % kSlots];
      slot = std::max(slot, wave_bytes(work, in_.at(r), out_.at(r)));
    }
    summary_.waves.push_back(total);
  }

  // What a wave takes of a rank's arena.
  static int64_t wave_bytes(const Work& work, const Flow::Rank& in, const Flow::Rank& out) {
    auto staged = [](const Flow::Rank& flow) {
      return flow.sent + flow.received + kAlignment * (flow.messages + flow.messages_received);
    };
    return work.assembled + aligned(work.sums * kSumBytes) + std::max(staged(in), staged(out) - work.repeated);
  }

  int64_t elementwise_in_wave(int32_t rank, int32_t w) const {
    const auto waves = static_cast<int64_t>(plan_.waves.size());
    const int64_t all = elementwise_ns_[rank];
    if (plan_.elementwise == ElementwiseOrder::kFirst) return w == 0 ? all : 0;
    if (plan_.elementwise == ElementwiseOrder::kLast) return w + 1 == waves ? all : 0;
    return mul_div(all, w + 1, waves) - mul_div(all, w, waves);
  }

  void finish() {
    PlanSummary& s = summary_;
    int64_t sum = 0;
    for (int32_t r = 0; r < count_; ++r) {
      PlanSummary::Rank& rank = s.ranks[r];
      rank.scratch_bytes = std::accumulate(slots_[r].begin(), slots_[r].end(), workspace_[r]);
      // Waves overlap, so over a step a link is busy for the longer of what it sends and what it receives.
      for (const auto& [sent, received] : links_[r]) rank.exchange_ns += std::max(sent, received);
      s.bytes_sent_total += rank.bytes_sent;
      s.bytes_sent_max = std::max(s.bytes_sent_max, rank.bytes_sent);
      s.scratch_bytes_max = std::max(s.scratch_bytes_max, rank.scratch_bytes);
      s.slowest_ns = std::max(s.slowest_ns, rank.total_ns());
      sum += rank.total_ns();
    }
    s.mean_ns = sum / count_;
    s.rounds = static_cast<int64_t>(s.waves.size());
    // The network carries one exchange at a time: while wave k computes, k + 1 arrives, then k leaves.
    int64_t network = s.waves.empty() ? 0 : s.waves[0].in_ns;
    int64_t arrived = network;
    int64_t computed = 0;
    int64_t serial = 0;
    for (size_t k = 0; k < s.waves.size(); ++k) {
      s.collectives += s.waves[k].collectives;
      s.padding_bytes += s.waves[k].padding_bytes;
      serial += s.waves[k].in_ns + s.waves[k].compute_ns + s.waves[k].out_ns;
      computed = std::max(computed, arrived) + s.waves[k].compute_ns;
      if (k + 1 < s.waves.size()) arrived = network += s.waves[k + 1].in_ns;
      network = std::max(network, computed) + s.waves[k].out_ns;
    }
    const int64_t overlapped = std::max(network, computed);
    // Exchanges and kernels compete for the device: some of what could be hidden is not.
    s.predicted_ns = overlapped + mul_div(serial - overlapped, 100 - cost_.table().overlap_percent, 100);
  }

  const Catalog& catalog_;
  const CostModel& cost_;
  const Plan& plan_;
  const int32_t count_;
  const int32_t nodes_;
  Flow in_;
  Flow out_;
  std::vector<Work> work_;
  std::vector<int64_t> elementwise_ns_;
  std::vector<Spreads> family_spreads_;
  std::vector<std::array<int64_t, kSlots>> slots_;  // of a rank's arena
  std::vector<int64_t> workspace_;
  std::vector<std::array<std::pair<int64_t, int64_t>, kDirections>> links_;  // sent and received, in and out
  std::vector<std::pair<int32_t, int32_t>> started_;                         // rank and shape
  PlanSummary summary_;
};

}  // namespace

PlanSummary account(const Catalog& catalog, const CostModel& cost, const Plan& plan) {
  return Accountant(catalog, cost, plan).run();
}

int64_t largest_matrix_ns(const Catalog& catalog, const CostModel& cost, const Plan& plan) {
  int64_t largest = 0;
  for (int32_t j = 0; j < catalog.matrix_count(); ++j) {
    const Load own = cost.own(catalog.class_of(j), plan.owner[j]);
    largest = std::max(largest, own.compute + own.in_receive + own.out_send);
  }
  return largest;
}

}  // namespace muster::plan
