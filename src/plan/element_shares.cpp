#include "plan/element_shares.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/alignment.h"
#include "base/int128.h"

namespace muster::plan {

namespace {

// Cuts fall on multiples of this, so that small parameters stay in one piece and vectors aligned.
constexpr int64_t kGrain = 64;
// A rank never updates more than this many times the even share: the moments it keeps take memory.
constexpr int64_t kMostShares = 2;
constexpr int64_t kCostUnit = 1024;

// Families share replicate axes and bytes per element, so that a stream is cut and costed uniformly.
auto family_key(const Parameter& p) {
  std::vector<bool> replicated;
  for (const Placement& placement : p.layout.placements) {
    replicated.push_back(placement.kind == Placement::Kind::kReplicate);
  }
  return std::tuple(p.layout.mesh, replicated, p.dtype, p.grad_dtype, p.algorithm);
}

// What updating kCostUnit elements costs each rank of a share, traffic with the other replicas included.
std::vector<int64_t> unit_ns(const Problem& problem, const CostModel& cost, const std::vector<int32_t>& family,
                             const std::vector<int32_t>& ranks, int64_t exchange_percent) {
  const int64_t bytes = cost.elementwise_bytes(problem.parameters[family[0]].algorithm);
  const int64_t wire = kCostUnit * (share_in_bytes(problem, family) + share_out_bytes(problem, family));
  std::map<int32_t, int64_t> on_node;
  for (const int32_t rank : ranks) ++on_node[cost.node(rank)];
  std::vector<int64_t> units;
  for (const int32_t rank : ranks) {
    const int64_t near = on_node[cost.node(rank)];
    const int64_t far = static_cast<int64_t>(ranks.size()) - near;
    const int64_t exchange = cost.link_ns(wire * (near - 1), true) + cost.link_ns(wire * far, false);
    units.push_back(1 + cost.memory_ns(kCostUnit * bytes) + exchange * exchange_percent / 100);
  }
  return units;
}

void add_units(const ElementShare& share, const std::vector<int64_t>& units, std::vector<int64_t>& totals) {
  for (size_t i = 0; i < share.ranks.size(); ++i) {
    totals[share.ranks[i]] += base::mul_div(share.cuts[i + 1] - share.cuts[i], units[i], kCostUnit);
  }
}

// Raises every rank to one level, within its limit, until all elements are placed.
std::vector<int64_t> fill(const std::vector<int64_t>& loads, const std::vector<int64_t>& units, int64_t elements) {
  const auto n = static_cast<int64_t>(loads.size());
  const int64_t most = (elements + n - 1) / n * kMostShares;
  auto room = [&](size_t i, int64_t level) {
    if (level <= loads[i]) return int64_t{0};
    return static_cast<int64_t>(std::min<base::Int128>(most, base::Int128{level - loads[i]} * kCostUnit / units[i]));
  };
  auto placed = [&](int64_t level) {
    base::Int128 sum = 0;
    for (size_t i = 0; i < loads.size(); ++i) sum += room(i, level);
    return sum;
  };
  const int64_t dearest = *std::max_element(units.begin(), units.end());
  int64_t low = *std::min_element(loads.begin(), loads.end());
  int64_t high =
      *std::max_element(loads.begin(), loads.end()) + base::mul_div(elements, dearest, kCostUnit) + dearest + 1;
  while (low < high) {
    const int64_t level = low + (high - low) / 2;
    if (placed(level) >= elements) {
      high = level;
    } else {
      low = level + 1;
    }
  }
  std::vector<int64_t> cuts{0};
  int64_t sum = 0;
  for (size_t i = 0; i < loads.size(); ++i) {
    sum = std::min(elements, sum + room(i, low));
    cuts.push_back(std::min(elements, base::round_up(sum, kGrain)));
  }
  return cuts;
}

}  // namespace

int64_t share_in_bytes(const Problem& problem, const std::vector<int32_t>& family) {
  return problem.grad_sync ? byte_size(problem.parameters[family[0]].grad_dtype) : 0;
}

int64_t share_out_bytes(const Problem& problem, const std::vector<int32_t>& family) {
  return byte_size(problem.parameters[family[0]].dtype);
}

void add_share_ns(const Problem& problem, const CostModel& cost, const std::vector<int32_t>& family,
                  const ElementShare& share, std::vector<int64_t>& totals) {
  add_units(share, unit_ns(problem, cost, family, share.ranks, 100), totals);
}

void share_elements(const Catalog& catalog, const CostModel& cost, int64_t exchange_percent,
                    std::vector<int64_t>& totals, Plan& plan) {
  const Problem& problem = catalog.problem();
  std::map<decltype(family_key(Parameter{})), std::vector<int32_t>> families;
  for (int32_t p = 0; p < static_cast<int32_t>(problem.parameters.size()); ++p) {
    const Parameter& parameter = problem.parameters[p];
    if (is_matrix_algorithm(parameter.algorithm) || catalog.updated_in_place(p)) continue;
    families[family_key(parameter)].push_back(p);
  }
  for (auto& [key, members] : families) {
    const std::vector<KindCount> kinds = count_kinds(catalog, members);
    const layout::Partition& first = catalog.partition(members[0]);
    const Mesh& mesh = problem.meshes[problem.parameters[members[0]].layout.mesh];
    const std::vector<bool>& replicated = std::get<1>(key);

    // Positions that differ in replicated coordinates alone share a stream.
    std::map<std::vector<int32_t>, std::vector<int32_t>> groups;
    for (int32_t position = 0; position < first.positions(); ++position) {
      std::vector<int32_t> at;
      for (size_t a = 0; a < mesh.axes.size(); ++a) {
        if (!replicated[a]) at.push_back(mesh.coordinate(position, static_cast<int>(a)));
      }
      groups[at].push_back(position);
    }
    const auto family = static_cast<int32_t>(plan.families.size());
    for (const auto& [at, positions] : groups) {
      int64_t elements = 0;
      for (const KindCount& kind : kinds) {
        elements += kind.number * catalog.partition(kind.example).local_elements(positions[0]);
      }
      if (elements == 0) continue;
      ElementShare share{family, {}, {}};
      std::vector<int64_t> loads;
      for (const int32_t position : positions) {
        share.ranks.push_back(first.rank(position));
        loads.push_back(totals[share.ranks.back()]);
      }
      const std::vector<int64_t> units = unit_ns(problem, cost, members, share.ranks, exchange_percent);
      share.cuts = fill(loads, units, elements);
      add_units(share, units, totals);
      plan.shares.push_back(std::move(share));
    }
    plan.families.push_back(std::move(members));
  }
}

StreamRange share_in_wave(const Plan& plan, const ElementShare& share, size_t i, int32_t wave) {
  const auto waves = static_cast<int64_t>(plan.waves.size());
  const int64_t begin = share.cuts[i];
  const int64_t size = share.cuts[i + 1] - begin;
  if (plan.elementwise != ElementwiseOrder::kInterleaved) {
    const int64_t only = plan.elementwise == ElementwiseOrder::kFirst ? 0 : waves - 1;
    return wave == only ? StreamRange{begin, begin + size} : StreamRange{};
  }
  auto at = [&](int64_t w) {
    return w == waves ? size : std::min(size, base::mul_div(size, w, waves) / kGrain * kGrain);
  };
  return {begin + at(wave), begin + at(wave + 1)};
}

}  // namespace muster::plan
