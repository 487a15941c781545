#include "plan_text/parameter_table.h"

#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "plan/catalog.h"
#include "plan/replicas.h"
#include "plan_text/text.h"
#include "plan_text/words.h"

namespace muster::plan_text {
namespace {

constexpr size_t kListed = 4;

std::vector<int32_t> holders(const layout::Partition& partition) {
  std::set<int32_t> ranks;
  for (int32_t position = 0; position < partition.positions(); ++position) {
    if (partition.local_elements(position) > 0) ranks.insert(partition.rank(position));
  }
  return {ranks.begin(), ranks.end()};
}

void add_owners(const plan::Catalog& catalog, const Plan& plan, int32_t parameter, ParameterRow& row) {
  std::set<int32_t> owners;
  const int32_t first = catalog.first_matrix(parameter);
  for (int32_t j = first; j < catalog.matrix_count() && catalog.parameter_of(j) == parameter; ++j) {
    ++row.matrices;
    owners.insert(plan.owner[j]);
    if (!plan::in_each_replica(plan, j)) continue;
    row.update = ParameterRow::Update::kReplica;
    const plan::HolderSet& set = catalog.holders_of(j);
    for (int32_t replica = 0; replica < set.replicas; ++replica) {
      owners.insert(set.counterpart(plan.owner[j], replica));
    }
  }
  row.owners.assign(owners.begin(), owners.end());
}

}  // namespace

std::vector<ParameterRow> parameter_rows(const PlanReport& report) {
  const Problem& problem = report.problem;
  const plan::Catalog catalog(problem);
  std::vector<std::set<int32_t>> sharing(problem.parameters.size());
  for (const ElementShare& share : report.plan.shares) {
    for (size_t i = 0; i < share.ranks.size(); ++i) {
      if (share.cuts[i] == share.cuts[i + 1]) continue;
      for (const int32_t p : report.plan.families[share.family]) sharing[p].insert(share.ranks[i]);
    }
  }
  std::vector<ParameterRow> rows;
  for (int32_t p = 0; p < static_cast<int32_t>(problem.parameters.size()); ++p) {
    const Parameter& parameter = problem.parameters[p];
    ParameterRow& row = rows.emplace_back();
    row.name = parameter.name;
    row.shape = parameter.shape;
    row.elements = element_count(parameter.shape);
    row.dtype = parameter.dtype;
    row.layout = layout_words(problem.meshes[parameter.layout.mesh], parameter.layout);
    row.algorithm = parameter.algorithm;
    if (is_matrix_algorithm(parameter.algorithm)) {
      add_owners(catalog, report.plan, p, row);
    } else if (catalog.updated_in_place(p)) {
      row.update = ParameterRow::Update::kHolders;
      row.owners = holders(catalog.partition(p));
    } else {
      row.update = ParameterRow::Update::kShared;
      row.owners.assign(sharing[p].begin(), sharing[p].end());
    }
  }
  return rows;
}

std::string_view word(ParameterRow::Update update) {
  switch (update) {
    case ParameterRow::Update::kReplica:
      return "each replica";
    case ParameterRow::Update::kHolders:
      return "holders";
    case ParameterRow::Update::kShared:
      return "shared";
    default:
      return "owner";
  }
}

std::string ranks_words(const std::vector<int32_t>& ranks) {
  if (ranks.empty()) return "none";
  const bool all_between = ranks.back() - ranks.front() + 1 == static_cast<int32_t>(ranks.size());
  if (ranks.size() > 2 && all_between) return fmt::format("{}-{}", ranks.front(), ranks.back());
  if (ranks.size() <= kListed) return fmt::format("{}", fmt::join(ranks, ", "));
  return fmt::format("{} ranks, {}-{}", grouped_text(std::ssize(ranks)), ranks.front(), ranks.back());
}

}  // namespace muster::plan_text
