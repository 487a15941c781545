// The global strategy: owners over the whole model, then as many waves as time and memory ask for.
#include <algorithm>
#include <optional>

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

// Wave counts that are tried, until kPatience in a row that meet the scratch cap bring nothing.
constexpr int32_t kWaveCounts[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024};
constexpr int32_t kPatience = 3;

constexpr int64_t kMiB = 1 << 20;

int64_t mib(int64_t bytes) { return (bytes + kMiB - 1) / kMiB; }

void check_largest_fits(const Catalog& catalog, const CostModel& cost, int64_t cap) {
  for (int32_t j = 0; j < catalog.matrix_count(); ++j) {
    const int64_t bytes = cost.workspace_bytes(catalog.class_at(j).matrix);
    if (bytes <= cap) continue;
    throw InvalidArgument(fmt::format("scratch cap of {} MiB is below the {} MiB that a {}x{} matrix of '{}' takes",
                                      cap / kMiB, mib(bytes), catalog.rows(j), catalog.columns(j),
                                      catalog.problem().parameters[catalog.parameter_of(j)].name));
  }
}

}  // namespace

Plan build_global(const Catalog& catalog, const CostModel& cost, const PlanOptions& options) {
  const int64_t cap = options.scratch_bytes;
  if (cap > 0) check_largest_fits(catalog, cost, cap);

  Plan plan;
  plan.strategy = Strategy::kGlobal;
  plan.owner = assign_owners(catalog, cost);
  const Ledger ledger = replay(catalog, cost, plan.owner);
  std::vector<int64_t> totals;
  for (int32_t r = 0; r < catalog.problem().ranks; ++r) totals.push_back(ledger.total(r));
  share_elements(catalog, cost, totals, plan);

  auto with_waves = [&](int32_t count) {
    Plan candidate = plan;
    candidate.wave = assign_waves(catalog, cost, plan.owner, count);
    const auto last = std::max_element(candidate.wave.begin(), candidate.wave.end());
    candidate.waves.resize(last == candidate.wave.end() ? 1 : *last + 1);
    return candidate;
  };
  std::vector<int32_t> counts(std::begin(kWaveCounts), std::end(kWaveCounts));
  if (options.waves > 0) counts = {options.waves};
  std::optional<Plan> best;
  int64_t best_ns = 0;
  int32_t fruitless = 0;
  int64_t least_scratch = 0;
  for (const int32_t count : counts) {
    Plan candidate = with_waves(count);
    const PlanSummary summary = account(catalog, cost, candidate);
    if (least_scratch == 0 || summary.scratch_bytes_max < least_scratch) least_scratch = summary.scratch_bytes_max;
    if (cap > 0 && summary.scratch_bytes_max > cap) continue;
    if (best && summary.predicted_ns >= best_ns) {
      if (++fruitless == kPatience) break;
      continue;
    }
    fruitless = 0;
    best_ns = summary.predicted_ns;
    best = std::move(candidate);
  }
  if (!best) {
    throw InvalidArgument(
        fmt::format("scratch cap of {} MiB: {} would take {} MiB", cap / kMiB,
                    options.waves > 0 ? fmt::format("{} waves", options.waves) : std::string("every number of waves"),
                    mib(least_scratch)));
  }
  return std::move(*best);
}

}  // namespace muster::plan
