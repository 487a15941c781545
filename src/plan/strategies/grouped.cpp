// Groups of parameters, one wave each, whose sizes the user may give (PlanOptions::groups, Problem::group_sizes). As in
// modded-nanogpt #132 every exchange in is posted before anything is computed, and every update is applied at the end.
// Elementwise parameters that travel have a wave of their own, the first: there another optimizer steps before Muon.
#include <algorithm>
#include <span>

#include <fmt/format.h>

#include "base/text.h"
#include "plan/strategies/builder.h"

namespace muster::plan {

namespace {

// Matrix parameters by kind, in the order in which the kinds first appear.
std::vector<int32_t> parameters_by_kind(const Catalog& catalog) {
  const Problem& problem = catalog.problem();
  std::vector<int32_t> parameters;
  for (int32_t p = 0; p < static_cast<int32_t>(problem.parameters.size()); ++p) {
    if (is_matrix_algorithm(problem.parameters[p].algorithm)) parameters.push_back(p);
  }
  std::stable_sort(parameters.begin(), parameters.end(),
                   [&](int32_t a, int32_t b) { return catalog.kind_of(a) < catalog.kind_of(b); });
  return parameters;
}

// As the options or the problem give them, or one group per kind.
std::vector<int64_t> group_sizes(const Catalog& catalog, const std::vector<int32_t>& parameters,
                                 const std::vector<int64_t>& chosen) {
  std::vector<int64_t> sizes = chosen.empty() ? catalog.problem().group_sizes : chosen;
  if (sizes.empty()) {
    for (const KindCount& kind : count_kinds(catalog, parameters)) sizes.push_back(kind.number);
  }
  auto left = static_cast<int64_t>(parameters.size());
  const bool fit = std::ranges::all_of(sizes, [&](int64_t size) { return size <= left && (left -= size, true); });
  if (!fit || left > 0) {
    base::fail("strategy grouped: groups [{}] do not sum to the {} matrix parameters", fmt::join(sizes, ","),
               parameters.size());
  }
  return sizes;
}

bool elements_travel(const Catalog& catalog) {
  const std::vector<Parameter>& parameters = catalog.problem().parameters;
  for (int32_t p = 0; p < static_cast<int32_t>(parameters.size()); ++p) {
    if (!is_matrix_algorithm(parameters[p].algorithm) && !catalog.updated_in_place(p)) return true;
  }
  return false;
}

// Gives each rank equally many of the group's parameters.
void place_group(Builder& builder, const Catalog& catalog, const PlanOptions& options, std::span<const int32_t> group) {
  const std::vector<Parameter>& parameters = catalog.problem().parameters;
  const int32_t wave = builder.new_wave(Transport::kPadded);
  const size_t ranks = builder.ranks_of(catalog.first_matrix(group[0])).size();
  const size_t each = ceil_div(group.size(), ranks);
  for (size_t slot = 0; slot < each * ranks; ++slot) {
    const bool real = slot < group.size();
    const int32_t p = group[std::min(slot, group.size() - 1)];
    const int32_t first_of_rank = group[std::min(slot / each * each, group.size() - 1)];
    if (real && !options.mixed_groups && catalog.kind_of(p) != catalog.kind_of(first_of_rank)) {
      base::fail("strategy grouped: a rank would mix '{}' and '{}' in the group of {}; mixed groups allow that",
                 parameters[first_of_rank].name, parameters[p].name, group.size());
    }
    for (int32_t i = 0; i < catalog.grid(p).count(); ++i) {
      const int32_t j = catalog.first_matrix(p) + i;
      if (builder.ranks_of(j).size() != ranks) {
        base::fail("strategy grouped: '{}' lies on {} ranks, the first of its group on {}", parameters[p].name,
                   builder.ranks_of(j).size(), ranks);
      }
      if (real) {
        builder.place(j, slot / each, wave);
      } else {
        builder.pad(j, slot / each, wave);
      }
    }
  }
}

}  // namespace

Plan build_grouped(const Catalog& catalog, const PlanOptions& options, Padding padding) {
  const std::vector<int32_t> parameters = parameters_by_kind(catalog);
  Builder builder(catalog, Strategy::kGrouped, padding);
  builder.post_all_first();
  if (elements_travel(catalog)) builder.new_wave(Transport::kRagged);
  size_t begin = 0;
  for (const int64_t size : group_sizes(catalog, parameters, options.groups)) {
    const auto count = static_cast<size_t>(size);
    place_group(builder, catalog, options, std::span(parameters).subspan(begin, count));
    begin += count;
  }
  return builder.take();
}

}  // namespace muster::plan
