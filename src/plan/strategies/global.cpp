// The global strategy: owners over the whole model, then as many waves as predicted time and memory require.
#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "base/text.h"
#include "muster/error.h"
#include "plan/cost_model/plan_cost.h"
#include "plan/cost_model/rank_load.h"
#include "plan/element_shares.h"
#include "plan/ownership.h"
#include "plan/replicas.h"
#include "plan/scratch.h"
#include "plan/strategies/strategies.h"
#include "plan/waves.h"

namespace muster::plan {

namespace {

// Weights of exchanges against computation, in percent: how far they overlap is known only once waves are cut. The
// first is the default; another must be at least 1 / kClearlyFaster faster.
constexpr int64_t kExchangePercents[] = {100, 0, 50, 200, 500};
constexpr int64_t kEvenShares = -1;  // of elements, regardless of a rank's other work
constexpr int64_t kClearlyFaster = 50;
constexpr int64_t kWorthMoreWaves = 128;
constexpr int64_t kWorthMoreRounds = 256;  // peers' rounds may be faster than the result by less than this
constexpr int64_t kAnyFaster = std::numeric_limits<int64_t>::max();

// Classes that each replica may orthogonalize for itself: those that repeat at most this percentage of the exchange
// time that they save, or all that save any.
constexpr int64_t kRepeatPercents[] = {100, 200, std::numeric_limits<int32_t>::max()};

// Wave counts to try, until kPatience of them in a row meet the scratch cap and are no faster.
constexpr int32_t kWaveCounts[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024};
constexpr int32_t kPatience = 3;
// With an order: the first wave starts when about an eighth of the gradients are ready.
constexpr int32_t kOrderedWaves = 8;

constexpr int64_t kMiB = 1 << 20;

int64_t mib(int64_t bytes) { return (bytes + kMiB - 1) / kMiB; }

Plan build_own_groups(const Catalog& catalog, Padding padding) { return build_grouped(catalog, {}, padding); }

// The waves of matrices, renumbered so that each has some.
std::vector<int32_t> without_empty(std::vector<int32_t> wave) {
  std::vector<int32_t> used = wave;
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  for (int32_t& w : wave) w = static_cast<int32_t>(std::lower_bound(used.begin(), used.end(), w) - used.begin());
  return wave;
}

class Search {
 public:
  // `cap`: the most scratch per rank in bytes; 0: no limit.
  Search(const Catalog& catalog, const CostModel& cost, const PlanOptions& options, int64_t cap)
      : catalog_(catalog), cost_(cost), options_(options), cap_(cap), nothing_repeated_(catalog.classes().size()) {}

  // Nothing if no plan keeps the cap. Then a search with least_scratch() or more as its cap finds one: until a plan
  // fits, a search tries the same plans whatever its cap is.
  std::optional<Plan> run() {
    const Plan owned = with_owners(best_owners());
    const std::vector<int32_t> counts =
        options_.waves > 0 ? std::vector{options_.waves} : std::vector(std::begin(kWaveCounts), std::end(kWaveCounts));
    if (!options_.order.empty()) return in_order(owned, counts);
    std::optional<Found> best;
    for (const WaveCut cut : {WaveCut::kByTime, WaveCut::kByCompute, WaveCut::kByShape, WaveCut::kInTurn}) {
      std::optional<Found> found = best_waves(owned, cut, counts);
      if (found && (!best || found->ns < best->ns)) best = std::move(found);
    }
    share_otherwise(best);
    if (options_.waves == 0 && options_.wave_order == WaveOrder::kSmallFirst) {
      std::optional<Found> rounds = best_rounds();
      if (rounds) keep_faster(std::move(rounds->plan), best, kWorthMoreRounds);
    }
    if (!best) return std::nullopt;
    if (options_.in_flight == 0) with_more_in_flight(best);
    return kept(std::move(best->plan));
  }

  int64_t least_scratch() const { return least_scratch_; }

 private:
  struct Found {
    Plan plan;
    int64_t ns;  // predicted
  };

  Plan kept(Plan plan) const {
    plan.scratch_cap = cap_;
    return plan;
  }

  // The plans of peers whose rules cover the problem, each once.
  std::vector<Plan> peers() const {
    std::vector<Plan> plans;
    for (Plan (*build)(const Catalog&, Padding) :
         {build_chunked, build_megabatch, build_layerwise, build_own_groups, build_routed}) {
      try {
        Plan plan = build(catalog_, Padding::kNone);
        const bool is_new = std::none_of(plans.begin(), plans.end(), [&](const Plan& other) {
          return plan.owner == other.owner && plan.wave == other.wave && plan.each_replica == other.each_replica;
        });
        if (is_new) plans.push_back(std::move(plan));
      } catch (const InvalidArgument&) {
        continue;
      }
    }
    return plans;
  }

  // The peers' rounds without their padding: rarely faster, and then by a few percent. Elements are shared out and
  // spread over the waves as elsewhere, or as peers have it.
  std::optional<Found> best_rounds() {
    std::optional<Found> best;
    for (const Plan& peer : peers()) {
      Plan ours = with_owners({peer.owner, repeated_classes(catalog_, peer)});
      ours.wave = without_empty(peer.wave);
      if (options_.elementwise == ElementwiseOrder::kInterleaved) {
        Plan theirs = with_owners({peer.owner, repeated_classes(catalog_, peer)}, kEvenShares);
        theirs.wave = peer.wave;
        theirs.elementwise = peer.elementwise;
        keep_faster(theirs, best, kAnyFaster);
        theirs.in_flight = peer.in_flight;
        if (options_.in_flight == 0) keep_faster(std::move(theirs), best, kAnyFaster);
      }
      keep_faster(std::move(ours), best, kAnyFaster);
    }
    share_otherwise(best);
    return best;
  }

  // An owner per matrix, and the classes that have one in each replica.
  struct Owners {
    std::vector<int32_t> owner;
    std::vector<bool> repeated;
    bool operator==(const Owners&) const = default;
  };

  const CostModel& cost_of(const std::vector<bool>& repeated) {
    if (repeated == nothing_repeated_) return cost_;
    return costs_.try_emplace(repeated, catalog_, cost_.table(), repeated).first->second;
  }

  Plan with_owners(Owners owners, int64_t share_percent = kExchangePercents[0]) {
    const CostModel& cost = cost_of(owners.repeated);
    Plan plan;
    plan.strategy = Strategy::kGlobal;
    plan.wave_order = options_.wave_order;
    plan.elementwise = options_.elementwise;
    plan.in_flight = std::max(1, options_.in_flight);
    plan.owner = std::move(owners.owner);
    for (int32_t j = 0; j < catalog_.matrix_count() && owners.repeated != nothing_repeated_; ++j) {
      plan.each_replica.push_back(owners.repeated[catalog_.class_of(j)]);
    }
    std::vector<int64_t> totals(catalog_.problem().ranks);
    if (share_percent != kEvenShares) {
      const RankLoad load = load_with_owners(catalog_, cost, plan.owner, share_percent);
      for (int32_t r = 0; r < catalog_.problem().ranks; ++r) totals[r] = load.total(r);
    }
    share_elements(catalog_, cost_, share_percent != kEvenShares ? share_percent : 100, totals, plan);
    return plan;
  }

  // Shares of elementwise parameters, levelled for every weight of the exchanges: if exchanges are the bottleneck, a
  // rank with little to compute would get more to send, and all would wait for it.
  void share_otherwise(std::optional<Found>& best) {
    if (!best || best->plan.shares.empty()) return;
    const Owners owners{best->plan.owner, repeated_classes(catalog_, best->plan)};
    for (const int64_t percent : kExchangePercents) {
      Plan plan = with_owners(owners, percent);
      plan.elementwise = best->plan.elementwise;
      plan.in_flight = best->plan.in_flight;
      plan.wave = best->plan.wave;
      keep_faster(std::move(plan), best);
    }
  }

  // More waves in flight take more scratch. The same waves are tried with twice as many each time, as long as that is
  // faster and keeps the scratch cap.
  void with_more_in_flight(std::optional<Found>& best) {
    for (const auto waves = static_cast<int32_t>(best->plan.waves.size()); best->plan.in_flight + 1 < waves;) {
      Plan plan = best->plan;
      plan.in_flight *= 2;
      if (keep_faster(std::move(plan), best) != Outcome::kKept) return;
    }
  }

  Owners default_owners() { return {assign_owners(catalog_, cost_, kExchangePercents[0]), nothing_repeated_}; }

  // Owners for every weight of the exchanges, one for all replicas or one in each; the first unless another is clearly
  // faster at a few wave counts.
  Owners best_owners() {
    Choice choice;
    for (const int64_t percent : kExchangePercents) consider(nothing_repeated_, percent, choice);
    std::vector<bool> before = nothing_repeated_;
    for (const int64_t percent : kRepeatPercents) {
      const std::vector<bool> repeated = worth_repeating(catalog_, cost_.table(), percent);
      if (repeated == before) continue;
      consider(repeated, kExchangePercents[0], choice);
      before = repeated;
    }
    const std::vector<bool> repeated = choice.owners().repeated;
    for (const int64_t percent : kExchangePercents) {
      if (repeated == nothing_repeated_ || percent == kExchangePercents[0]) continue;
      consider(repeated, percent, choice);
    }
    return choice.owners();
  }

  struct Choice {
    std::vector<Owners> seen;
    size_t best = 0;
    int64_t ns = 0;
    const Owners& owners() const { return seen[best]; }
  };

  void consider(const std::vector<bool>& repeated, int64_t percent, Choice& choice) {
    Owners owners{assign_owners(catalog_, cost_of(repeated), percent), repeated};
    if (std::find(choice.seen.begin(), choice.seen.end(), owners) != choice.seen.end()) return;
    choice.seen.push_back(owners);
    const std::optional<Found> found = with_few_waves(with_owners(std::move(owners)));
    if (!found || (choice.ns > 0 && found->ns >= choice.ns - choice.ns / kClearlyFaster)) return;
    choice.best = choice.seen.size() - 1;
    choice.ns = found->ns;
  }

  // The fastest of a few wave counts, or the first of larger ones that keeps the scratch cap.
  std::optional<Found> with_few_waves(const Plan& owned) {
    if (options_.waves > 0) return best_waves(owned, WaveCut::kByTime, {options_.waves});
    std::optional<Found> found = best_waves(owned, WaveCut::kByTime, {1, 2, 4, 8});
    for (const WaveCut cut : {WaveCut::kByTime, WaveCut::kInTurn}) {
      for (const int32_t count : {16, 32, 64, 128, 256}) {
        if (!found) found = best_waves(owned, cut, {count});
      }
    }
    return found;
  }

  // The fastest cut into waves that keeps the scratch cap, if any does.
  std::optional<Found> best_waves(const Plan& owned, WaveCut cut, const std::vector<int32_t>& counts) {
    const CostModel& cost = cost_of(repeated_classes(catalog_, owned));
    const WaveCutter cutter(catalog_, cost, owned.owner, cut, options_.wave_order);
    std::optional<Found> best;
    int32_t fruitless = 0;
    for (const int32_t count : counts) {
      Plan plan = owned;
      plan.wave = cutter.waves(count);
      const Outcome outcome = keep_faster(std::move(plan), best);
      if (outcome == Outcome::kKept) fruitless = 0;
      if (outcome == Outcome::kSlower && ++fruitless == kPatience) break;
    }
    return best;
  }

  // With the chosen owners or, if those keep no cap in this order, with the default ones. Only the scratch of the
  // latter counts as the least, since which owners are chosen depends on the cap.
  std::optional<Plan> in_order(const Plan& chosen, const std::vector<int32_t>& counts) {
    if (std::optional<Plan> found = fewest_in_order(chosen, counts)) return found;
    least_scratch_ = 0;
    return fewest_in_order(with_owners(default_owners()), counts);
  }

  // The fewest waves that keep the scratch cap: how far they overlap with backward is not predicted.
  std::optional<Plan> fewest_in_order(const Plan& owned, const std::vector<int32_t>& counts) {
    const CostModel& cost = cost_of(repeated_classes(catalog_, owned));
    const WaveCutter cutter(catalog_, cost, owned.owner, options_.order);
    std::optional<Found> found;
    for (const int32_t count : counts) {
      if (options_.waves == 0 && count < kOrderedWaves) continue;
      Plan plan = owned;
      plan.wave = cutter.waves(count);
      if (keep_faster(std::move(plan), found) == Outcome::kKept) return kept(std::move(found->plan));
    }
    return std::nullopt;
  }

  enum class Outcome { kKept, kSlower, kDoesNotFit };

  // Replaces the best plan so far by one whose waves are assigned, if that keeps the scratch cap and is faster. More
  // waves are more calls and messages, and more of them in flight take more scratch, so they must save 1 / `worth_more`
  // of the time.
  Outcome keep_faster(Plan plan, std::optional<Found>& best, int64_t worth_more = kWorthMoreWaves) {
    const auto last = std::max_element(plan.wave.begin(), plan.wave.end());
    plan.waves.assign(last == plan.wave.end() ? 1 : *last + 1, {});
    plan.in_flight = most_in_flight(plan.in_flight, plan.waves.size());
    const PlanSummary summary = plan_cost(catalog_, cost_, plan);
    if (least_scratch_ == 0) least_scratch_ = summary.scratch_bytes_max;
    least_scratch_ = std::min(least_scratch_, summary.scratch_bytes_max);
    if (cap_ > 0 && summary.scratch_bytes_max > cap_) return Outcome::kDoesNotFit;
    const bool more = best && (plan.waves.size() > best->plan.waves.size() || plan.in_flight > best->plan.in_flight);
    if (best && summary.predicted_ns >= best->ns - (more ? best->ns / worth_more : 0)) return Outcome::kSlower;
    best = Found{std::move(plan), summary.predicted_ns};
    return Outcome::kKept;
  }

  const Catalog& catalog_;
  const CostModel& cost_;
  const PlanOptions& options_;
  const int64_t cap_;
  const std::vector<bool> nothing_repeated_;      // by class
  std::map<std::vector<bool>, CostModel> costs_;  // by what is repeated
  int64_t least_scratch_ = 0;
};

// The options on which the least scratch depends: "with 2 waves, all in flight ", or nothing.
std::string condition(const PlanOptions& options) {
  std::string text;
  if (options.waves > 0) text = fmt::format("{} wave{}", options.waves, options.waves == 1 ? "" : "s");
  if (options.in_flight > 0) {
    if (!text.empty()) text += ", ";
    text += (options.in_flight == kAllInFlight ? "all" : std::to_string(options.in_flight)) + " in flight";
  }
  return text.empty() ? text : "with " + text + " ";
}

// The default cap of a model that needs more than kDefaultScratchBytes. The least itself leaves no choice of waves:
// with it moe-397b on 128 ranks takes 18.5 s in 1,001 waves, with half as much more 208 ms.
int64_t raised_cap(int64_t least) { return least + least / 2; }

}  // namespace

Plan build_global(const Catalog& catalog, const CostModel& cost, const PlanOptions& options) {
  const int64_t cap = options.scratch_bytes.value_or(kDefaultScratchBytes);
  Search search(catalog, cost, options, cap);
  if (std::optional<Plan> plan = search.run()) return std::move(*plan);
  if (options.scratch_bytes) {
    const std::string given = cap % kMiB == 0 ? fmt::format("{} MiB", cap / kMiB) : fmt::format("{} bytes", cap);
    throw InvalidArgument({fmt::format("scratch cap of {} is too small: {}the least that works is {} MiB", given,
                                       condition(options), mib(search.least_scratch())),
                           ErrorCode::kScratchCapTooSmall});
  }
  std::optional<Plan> plan = Search(catalog, cost, options, raised_cap(search.least_scratch())).run();
  if (!plan) throw Internal("no plan keeps more scratch than the least");
  plan->scratch_cap_raised = true;
  return std::move(*plan);
}

}  // namespace muster::plan
