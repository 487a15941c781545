#include "plan/cost_model/plan_cost.h"

#include <algorithm>
#include <array>

#include "base/int128.h"
#include "plan/cost_model/wave_work.h"
#include "plan/scratch.h"

namespace muster::plan {

namespace {

constexpr size_t kDirections = 2;

// Sums a plan up, wave after wave.
class PlanCost {
 public:
  PlanCost(const Catalog& catalog, const CostModel& cost, const Plan& plan)
      : cost_(cost),
        plan_(plan),
        count_(catalog.problem().ranks),
        waves_(catalog, cost, plan),
        arenas_(count_, Arena(arena_slots(plan))),
        workspace_(count_),
        links_(count_) {
    summary_.ranks.resize(count_);
  }

  PlanSummary run() {
    for (size_t w = 0; w < plan_.waves.size(); ++w) {
      waves_.count(static_cast<int32_t>(w));
      add_wave(w);
    }
    finish();
    return std::move(summary_);
  }

 private:
  void add_wave(size_t w) {
    PlanSummary::WaveTotal total;
    total.matrices = waves_.matrices();
    total.zeros = static_cast<int32_t>(plan_.waves[w].zeros.size());
    total.owners = waves_.owners();
    total.bytes_in = waves_.in().bytes();
    total.bytes_out = waves_.out().bytes();
    total.collectives = (total.bytes_in > 0) + (total.bytes_out > 0);
    total.padding_bytes = waves_.in().padding + waves_.out().padding;
    for (int32_t r = 0; r < count_; ++r) add_rank(r, w, total);
    summary_.waves.push_back(total);
  }

  void add_rank(int32_t r, size_t w, PlanSummary::WaveTotal& total) {
    const RankWork& work = waves_.at(r);
    const Traffic& in = waves_.in().at(r);
    const Traffic& out = waves_.out().at(r);
    const int64_t compute_ns = work.compute_ns(cost_.table());
    PlanSummary::Rank& rank = summary_.ranks[r];
    rank.compute_ns += compute_ns;
    rank.exchange_ns += start_ns(in) + start_ns(out);
    rank.bytes_sent += in.sent() + out.sent();
    rank.bytes_received += in.received() + out.received();
    rank.messages_sent += in.messages + out.messages;
    rank.matrices += work.matrices;
    rank.elements += work.elements;
    for (size_t d = 0; d < kDirections; ++d) {
      links_[r][d].first += (d == 0 ? in : out).sent_ns;
      links_[r][d].second += (d == 0 ? in : out).received_ns;
    }
    total.in_ns = std::max(total.in_ns, exchange_ns(in));
    total.compute_ns = std::max(total.compute_ns, compute_ns);
    total.out_ns = std::max(total.out_ns, exchange_ns(out));
    arenas_[r].add(w, wave_bytes(work, in, out));
    workspace_[r] = std::max(workspace_[r], work.workspace);
  }

  // Time to start the exchange and its messages; 0 for a rank that takes no part.
  int64_t start_ns(const Traffic& t) const {
    if (t.sent() + t.received() == 0) return 0;
    return cost_.table().exchange_ns + cost_.table().message_ns * std::max(t.messages, t.messages_received);
  }
  int64_t exchange_ns(const Traffic& t) const { return start_ns(t) + std::max(t.sent_ns, t.received_ns); }

  void finish() {
    PlanSummary& s = summary_;
    int64_t sum = 0;
    for (int32_t r = 0; r < count_; ++r) {
      PlanSummary::Rank& rank = s.ranks[r];
      rank.scratch_bytes = arenas_[r].bytes() + workspace_[r];
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
    int64_t serial = 0;
    for (const PlanSummary::WaveTotal& wave : s.waves) {
      s.collectives += wave.collectives;
      s.padding_bytes += wave.padding_bytes;
      serial += wave.in_ns + wave.compute_ns + wave.out_ns;
    }
    const int64_t overlapped = overlapped_ns();
    // Exchanges and kernels compete for the device: some of what could be hidden is not.
    s.predicted_ns = overlapped + base::mul_div(serial - overlapped, 100 - cost_.table().overlap_percent, 100);
  }

  // The network carries one exchange at a time, in the order of the pipeline: with n waves in flight, while wave k
  // computes, k + n arrives, then k leaves.
  int64_t overlapped_ns() const {
    const std::vector<PlanSummary::WaveTotal>& waves = summary_.waves;
    const auto ahead = static_cast<size_t>(plan_.in_flight);
    std::vector<int64_t> arrived(waves.size());
    int64_t network = 0;
    const auto arrive = [&](size_t k) {
      if (k < waves.size()) arrived[k] = network += waves[k].in_ns;
    };
    for (size_t k = 0; k < std::min(ahead, waves.size()); ++k) arrive(k);
    int64_t computed = 0;
    for (size_t k = 0; k < waves.size(); ++k) {
      computed = std::max(computed, arrived[k]) + waves[k].compute_ns;
      arrive(k + ahead);
      network = std::max(network, computed) + waves[k].out_ns;
    }
    return std::max(network, computed);
  }

  const CostModel& cost_;
  const Plan& plan_;
  const int32_t count_;
  WaveWork waves_;
  std::vector<Arena> arenas_;
  std::vector<int64_t> workspace_;
  std::vector<std::array<std::pair<int64_t, int64_t>, kDirections>> links_;  // sent and received, in and out
  PlanSummary summary_;
};

}  // namespace

PlanSummary plan_cost(const Catalog& catalog, const CostModel& cost, const Plan& plan) {
  return PlanCost(catalog, cost, plan).run();
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
