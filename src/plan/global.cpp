// The global strategy: owners over the whole model, then as many waves as time and memory ask for.
#include <algorithm>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "muster/error.h"
#include "plan/account.h"
#include "plan/ledger.h"
#include "plan/ownership.h"
#include "plan/shares.h"
#include "plan/strategies.h"
#include "plan/waves.h"

namespace muster::plan {

namespace {

// How heavily exchanges may weigh in the balance: how far they overlap with computation is known only once waves are
// cut. The first is what it is by default; another must be at least 1 / kClearlyFaster faster.
constexpr int64_t kExchangePercents[] = {100, 0, 50, 200, 500};
constexpr int64_t kClearlyFaster = 50;
constexpr int64_t kWorthMoreWaves = 128;

// Wave counts that are tried, until kPatience in a row that meet the scratch cap bring nothing.
constexpr int32_t kWaveCounts[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024};
constexpr int32_t kPatience = 3;
// With an order: the first wave starts when about an eighth of the gradients are there.
constexpr int32_t kOrderedWaves = 8;

constexpr int64_t kMiB = 1 << 20;

int64_t mib(int64_t bytes) { return (bytes + kMiB - 1) / kMiB; }

class Search {
 public:
  Search(const Catalog& catalog, const CostModel& cost, const PlanOptions& options)
      : catalog_(catalog), cost_(cost), options_(options) {}

  Plan run() {
    check_largest_fits();
    const Plan owned = with_owners(best_owners());
    const std::vector<int32_t> counts =
        options_.waves > 0 ? std::vector{options_.waves} : std::vector(std::begin(kWaveCounts), std::end(kWaveCounts));
    if (!options_.order.empty()) return in_order(owned, counts);
    std::optional<Found> best;
    for (const WaveCut cut : {WaveCut::kByTime, WaveCut::kByCompute, WaveCut::kByShape, WaveCut::kInTurn}) {
      std::optional<Found> found = best_waves(owned, cut, counts);
      if (found && (!best || found->ns < best->ns)) best = std::move(found);
    }
    // The peers' rounds without their padding: rarely faster, and then by a few percent.
    if (options_.waves == 0 && options_.wave_order == WaveOrder::kSmallFirst) {
      for (const Plan& peer : {build_chunked(catalog_), build_megabatch(catalog_), build_layerwise(catalog_)}) {
        Plan ragged = with_owners(peer.owner);
        ragged.wave = peer.wave;
        keep_faster(std::move(ragged), best);
      }
    }
    if (!best) refuse();
    share_otherwise(best);
    return std::move(best->plan);
  }

 private:
  struct Found {
    Plan plan;
    int64_t ns;  // predicted
  };

  void check_largest_fits() const {
    const int64_t cap = options_.scratch_bytes;
    for (int32_t j = 0; j < catalog_.matrix_count() && cap > 0; ++j) {
      const int64_t bytes = cost_.workspace_bytes(catalog_.class_at(j).matrix);
      if (bytes <= cap) continue;
      throw InvalidArgument(fmt::format("scratch cap of {} MiB is below the {} MiB that a {}x{} matrix of '{}' takes",
                                        cap / kMiB, mib(bytes), catalog_.rows(j), catalog_.columns(j),
                                        catalog_.problem().parameters[catalog_.parameter_of(j)].name));
    }
  }

  [[noreturn]] void refuse() const {
    throw InvalidArgument(
        fmt::format("scratch cap of {} MiB: {} would take at least {} MiB", options_.scratch_bytes / kMiB,
                    options_.waves > 0 ? fmt::format("{} waves", options_.waves) : "any plan", mib(least_scratch_)));
  }

  Plan with_owners(std::vector<int32_t> owner, int64_t share_percent = kExchangePercents[0]) const {
    Plan plan;
    plan.strategy = Strategy::kGlobal;
    plan.wave_order = options_.wave_order;
    plan.elementwise = options_.elementwise;
    plan.owner = std::move(owner);
    const Ledger ledger = replay(catalog_, cost_, plan.owner, share_percent);
    std::vector<int64_t> totals;
    for (int32_t r = 0; r < catalog_.problem().ranks; ++r) totals.push_back(ledger.total(r));
    share_elements(catalog_, cost_, share_percent, totals, plan);
    return plan;
  }

  // Elements of replicas, levelled for every weight of the exchanges: where those set the pace, a rank with little to
  // compute would get more to send, and all would wait for it.
  void share_otherwise(std::optional<Found>& best) {
    if (best->plan.shares.empty()) return;
    for (const int64_t percent : kExchangePercents) {
      Plan plan = with_owners(best->plan.owner, percent);
      plan.wave = best->plan.wave;
      keep_faster(std::move(plan), best);
    }
  }

  // Owners for every weight of the exchanges; the first unless another is clearly faster at a few wave counts.
  std::vector<int32_t> best_owners() {
    std::vector<std::vector<int32_t>> candidates;
    for (const int64_t percent : kExchangePercents) candidates.push_back(assign_owners(catalog_, cost_, percent));
    const std::vector<int32_t> counts = options_.waves > 0 ? std::vector{options_.waves} : std::vector{1, 2, 4, 8};
    size_t best = 0;
    int64_t best_ns = 0;
    for (size_t i = 0; i < candidates.size(); ++i) {
      const auto end = candidates.begin() + static_cast<std::ptrdiff_t>(i);
      if (std::find(candidates.begin(), end, candidates[i]) != end) continue;
      const std::optional<Found> found = best_waves(with_owners(candidates[i]), WaveCut::kByTime, counts);
      if (!found || (best_ns > 0 && found->ns >= best_ns - best_ns / kClearlyFaster)) continue;
      best = i;
      best_ns = found->ns;
    }
    return std::move(candidates[best]);
  }

  // The fastest cut into waves that keeps the scratch cap, if any does.
  std::optional<Found> best_waves(const Plan& owned, WaveCut cut, const std::vector<int32_t>& counts) {
    const Lineup lineup(catalog_, cost_, owned.owner, cut, options_.wave_order);
    std::optional<Found> best;
    int32_t fruitless = 0;
    for (const int32_t count : counts) {
      Plan plan = owned;
      plan.wave = lineup.waves(count);
      const Outcome outcome = keep_faster(std::move(plan), best);
      if (outcome == Outcome::kKept) fruitless = 0;
      if (outcome == Outcome::kSlower && ++fruitless == kPatience) break;
    }
    return best;
  }

  // The fewest waves that keep the scratch cap: how far they hide behind what makes the gradients is not predicted.
  Plan in_order(const Plan& owned, const std::vector<int32_t>& counts) {
    const Lineup lineup(catalog_, cost_, owned.owner, options_.order);
    std::optional<Found> found;
    for (const int32_t count : counts) {
      if (options_.waves == 0 && count < kOrderedWaves) continue;
      Plan plan = owned;
      plan.wave = lineup.waves(count);
      if (keep_faster(std::move(plan), found) == Outcome::kKept) return std::move(found->plan);
    }
    refuse();
  }

  enum class Outcome { kKept, kSlower, kDoesNotFit };

  // Puts a plan whose waves are assigned in place of the best so far, if it keeps the scratch cap and is faster.
  Outcome keep_faster(Plan plan, std::optional<Found>& best) {
    const auto last = std::max_element(plan.wave.begin(), plan.wave.end());
    plan.waves.assign(last == plan.wave.end() ? 1 : *last + 1, {});
    const PlanSummary summary = account(catalog_, cost_, plan);
    if (least_scratch_ == 0) least_scratch_ = summary.scratch_bytes_max;
    least_scratch_ = std::min(least_scratch_, summary.scratch_bytes_max);
    if (options_.scratch_bytes > 0 && summary.scratch_bytes_max > options_.scratch_bytes) return Outcome::kDoesNotFit;
    // More waves are more calls and messages: they must pay.
    const bool more = best && plan.waves.size() > best->plan.waves.size();
    if (best && summary.predicted_ns >= best->ns - (more ? best->ns / kWorthMoreWaves : 0)) return Outcome::kSlower;
    best = Found{std::move(plan), summary.predicted_ns};
    return Outcome::kKept;
  }

  const Catalog& catalog_;
  const CostModel& cost_;
  const PlanOptions& options_;
  int64_t least_scratch_ = 0;
};

}  // namespace

Plan build_global(const Catalog& catalog, const CostModel& cost, const PlanOptions& options) {
  return Search(catalog, cost, options).run();
}

}  // namespace muster::plan
