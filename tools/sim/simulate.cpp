#include "sim/simulate.h"

#include <algorithm>

#include "plan/cost_model/plan_cost.h"
#include "plan/cost_model/wave_work.h"
#include "plan/replicas.h"
#include "plan/scratch.h"
#include "sim/bound.h"
#include "sim/memory.h"
#include "sim/network.h"
#include "sim/rank_clock.h"

namespace muster::sim {
namespace {

constexpr int64_t kCopyBytes = 2;  // read and written, for each byte that is copied

class Replay {
 public:
  Replay(const plan::Catalog& catalog, const plan::CostModel& cost, const Plan& plan, const Cluster& cluster)
      : cost_(cost),
        cluster_(cluster),
        ranks_(catalog.problem().ranks),
        waves_(static_cast<int32_t>(plan.waves.size())),
        ahead_(plan.in_flight),
        counter_(catalog, cost, plan),
        memory_(catalog, plan),
        exchange_ns_(ranks_),
        clocks_(ranks_, RankClock(cluster.cost.overlap_percent)),
        parts_(plan::arena_slots(plan)) {}

  void keep_timeline() {
    result_.timeline.resize(ranks_);
    for (int32_t r = 0; r < ranks_; ++r) clocks_[r].spans = &result_.timeline[r];
  }

  // Calls reach as far as the wait for an exchange before it is carried out, for they may be made beside it.
  Simulation run() {
    for (int32_t round = 0; round < ahead_; ++round) make_calls(round);
    for (int32_t round = 0; round < waves_ + ahead_; ++round) {
      make_calls(round + ahead_);
      if (round < waves_) carry_out(round, Direction::kIn);
      if (round >= ahead_) carry_out(round - ahead_, Direction::kOut);
    }
    return finish();
  }

 private:
  enum class Direction : uint8_t { kIn, kOut };
  struct Part {
    plan::RankWork activity;
    int64_t in_ns = 0;  // 0: takes no part
    int64_t out_ns = 0;
    int64_t in_bytes = 0;
    int64_t received = 0;  // of them
    int64_t out_bytes = 0;
    int64_t staged = 0;  // of them
  };
  struct WaveParts {
    std::vector<Part> ranks;
    std::vector<int32_t> in_circle;
    std::vector<int32_t> out_circle;
  };
  WaveParts& at(int32_t wave) { return parts_[static_cast<size_t>(wave) % parts_.size()]; }

  void count(int32_t wave) {
    counter_.count(wave);
    WaveParts& parts = at(wave);
    parts.ranks.assign(ranks_, {});
    parts.in_circle = counter_.in().pairs.connected();
    parts.out_circle = counter_.out().pairs.connected();
    const std::vector<int64_t> in_ns = exchange_ns(cluster_, counter_.in(), ranks_);
    const std::vector<int64_t> out_ns = exchange_ns(cluster_, counter_.out(), ranks_);
    for (int32_t r = 0; r < ranks_; ++r) {
      const plan::Traffic& in = counter_.in().at(r);
      const plan::Traffic& out = counter_.out().at(r);
      const plan::RankWork& activity = counter_.at(r);
      parts.ranks[r] = {activity,
                        in_ns[r],
                        out_ns[r],
                        in.sent() + in.received(),
                        in.received(),
                        out.sent() + out.received(),
                        out.sent() - activity.repeated};
      memory_.add(wave, r, activity, in, out);
      exchange_ns_[r] += in_ns[r] + out_ns[r];
      result_.bytes_sent += in.sent() + out.sent();
      result_.messages += in.messages + out.messages;
    }
  }

  // Exchanges are numbered as they are posted: in w in round w, then the one out whose wave was computed.
  int64_t number_in(int32_t wave) const { return 2 * int64_t{wave}; }
  int64_t number_out(int32_t wave) const { return 2 * (int64_t{wave} + ahead_) + 1; }

  // The calls of a round, as engine::Pipeline has them with n waves in flight: in w, compute w - n, out w - n, finish
  // w - 2 n.
  void make_calls(int32_t w) {
    const auto is_wave = [&](int32_t wave) { return wave >= 0 && wave < waves_; };
    if (is_wave(w)) count(w);
    for (int32_t r = 0; r < ranks_; ++r) {
      if (is_wave(w)) start_in(r, w);
      if (is_wave(w - ahead_)) compute(r, w - ahead_);
      if (is_wave(w - 2 * ahead_)) finish_wave(r, w - 2 * ahead_);
    }
  }

  void start_in(int32_t r, int32_t w) {
    const Part& part = at(w).ranks[r];
    call(r, "pack", w, part.activity.pack_ns);
    if (part.in_ns > 0) clocks_[r].post(number_in(w));
  }

  void compute(int32_t r, int32_t w) {
    const Part& part = at(w).ranks[r];
    const plan::RankWork& activity = part.activity;
    const int64_t batch_ns = cluster_.cost.batch_ns;
    call(r, "elementwise", w, activity.elementwise_ns);
    clocks_[r].compute("orthogonalize at home", w, activity.home_ns + activity.home_batches * batch_ns);
    if (part.in_ns > 0) clocks_[r].wait(number_in(w));
    call(r, "assemble", w, cost_.memory_ns(kCopyBytes * part.received));
    clocks_[r].compute("orthogonalize", w, activity.owned_ns + activity.owned_batches * batch_ns);
    call(r, "stage", w, cost_.memory_ns(kCopyBytes * part.staged));
    if (part.out_ns > 0) clocks_[r].post(number_out(w));
  }

  void finish_wave(int32_t r, int32_t w) {
    const Part& part = at(w).ranks[r];
    if (part.out_ns > 0) clocks_[r].wait(number_out(w));
    call(r, "apply", w, part.activity.apply_ns);
  }

  void call(int32_t r, std::string_view label, int32_t wave, int64_t ns) {
    if (ns > 0) clocks_[r].compute(label, wave, ns + cluster_.launch_ns);
  }

  // Begins in a circle of ranks when its last is ready, and ends when its slowest is through.
  void carry_out(int32_t w, Direction direction) {
    const bool in = direction == Direction::kIn;
    const WaveParts& parts = at(w);
    const std::vector<int32_t>& circle = in ? parts.in_circle : parts.out_circle;
    const auto ns_of = [&](int32_t r) { return in ? parts.ranks[r].in_ns : parts.ranks[r].out_ns; };
    std::vector<int64_t> begin(ranks_);
    std::vector<int64_t> end(ranks_);
    for (int32_t r = 0; r < ranks_; ++r) {
      if (ns_of(r) > 0) begin[circle[r]] = std::max(begin[circle[r]], clocks_[r].ready());
    }
    for (int32_t r = 0; r < ranks_; ++r) {
      if (ns_of(r) == 0) continue;
      end[circle[r]] = std::max(end[circle[r]], clocks_[r].carry_out(begin[circle[r]], ns_of(r)));
    }
    for (int32_t r = 0; r < ranks_; ++r) {
      if (ns_of(r) == 0) continue;
      clocks_[r].end(in ? number_in(w) : number_out(w), end[circle[r]]);
      if (clocks_[r].spans == nullptr) continue;
      const int64_t bytes = in ? parts.ranks[r].in_bytes : parts.ranks[r].out_bytes;
      clocks_[r].spans->push_back({in ? "in" : "out", Stream::kExchange, w, begin[circle[r]], end[circle[r]], bytes});
    }
  }

  Simulation finish() {
    for (int32_t r = 0; r < ranks_; ++r) {
      result_.step_ns = std::max(result_.step_ns, clocks_[r].finish());
      result_.compute_ns = std::max(result_.compute_ns, clocks_[r].busy_ns());
      result_.exchange_ns = std::max(result_.exchange_ns, exchange_ns_[r]);
    }
    result_.exposed_comm_ns = result_.step_ns - result_.compute_ns;
    result_.scratch_bytes_max = memory_.scratch_bytes_max();
    result_.memory_bytes_max = memory_.bytes_max();
    result_.fits = cluster_.memory_bytes == 0 || result_.memory_bytes_max <= cluster_.memory_bytes;
    return std::move(result_);
  }

  const plan::CostModel& cost_;
  const Cluster& cluster_;
  const int32_t ranks_;
  const int32_t waves_;
  const int32_t ahead_;  // waves that arrive ahead of the one that computes
  plan::WaveWork counter_;
  Memory memory_;
  std::vector<int64_t> exchange_ns_;
  std::vector<RankClock> clocks_;
  std::vector<WaveParts> parts_;  // of the waves under way, as their slots in the arena
  Simulation result_;
};

}  // namespace

Simulation simulate(const Problem& problem, const Plan& plan, const Cluster& cluster, Keep keep) {
  validate(problem);
  validate(cluster.cost);
  const plan::Catalog catalog(problem);
  plan::check_fits(catalog, plan);
  const plan::CostModel cost(catalog, cluster.cost, plan::repeated_classes(catalog, plan));
  Replay replay(catalog, cost, plan, cluster);
  if (keep == Keep::kTimeline) replay.keep_timeline();
  Simulation result = replay.run();
  result.padding = padding(catalog, plan, cluster);
  result.bound_ns = bound_ns(catalog, plan::CostModel(catalog, cluster.cost), cluster);
  return result;
}

}  // namespace muster::sim
