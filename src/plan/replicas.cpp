#include "plan/replicas.h"

#include <algorithm>

#include "base/int128.h"
#include "plan/cost_model/cost_model.h"

namespace muster::plan {

namespace {

int32_t owner_near(const Catalog& catalog, const Plan& plan, const ZeroMatrix& matrix, int32_t rank) {
  if (!in_each_replica(plan, matrix.like)) return matrix.owner;
  const HolderSet& set = catalog.holders_of(matrix.like);
  const Holder* holder = set.find(rank);
  return holder != nullptr ? set.counterpart(matrix.owner, holder->replica) : matrix.owner;
}

}  // namespace

int32_t owner_for(const Catalog& catalog, const Plan& plan, int32_t matrix, int32_t rank) {
  return owner_near(catalog, plan, {matrix, plan.owner[matrix]}, rank);
}

int32_t owner_for(const Catalog& catalog, const Plan& plan, const ZeroMatrix& zero, int32_t rank) {
  return owner_near(catalog, plan, zero, rank);
}

bool can_repeat(const Catalog& catalog, const MatrixClass& c) {
  return catalog.holder_set(c).replicas > 1 && !c.all_replicas && !c.matrix.rule();
}

std::vector<bool> repeated_classes(const Catalog& catalog, const Plan& plan) {
  std::vector<bool> classes(catalog.classes().size());
  for (int32_t j = 0; j < catalog.matrix_count(); ++j) {
    if (in_each_replica(plan, j)) classes[catalog.class_of(j)] = can_repeat(catalog, catalog.class_at(j));
  }
  return classes;
}

std::vector<bool> worth_repeating(const Catalog& catalog, const CostTable& table, int64_t exchange_percent) {
  std::vector<bool> classes;
  for (const MatrixClass& c : catalog.classes()) classes.push_back(can_repeat(catalog, c));
  if (std::find(classes.begin(), classes.end(), true) == classes.end()) return classes;
  const CostModel once(catalog, table);
  const CostModel each(catalog, table, classes);
  for (int32_t c = 0; c < static_cast<int32_t>(classes.size()); ++c) {
    if (!classes[c]) continue;
    const HolderSet& set = catalog.holders_of_class(c);
    const int32_t owner = set.holders[0].rank;
    const Load alone = once.own(c, owner);
    int64_t saved = alone.in_receive + alone.out_send;
    int64_t repeated = -alone.compute;
    repeated += (set.replicas - 1) * each.memory_ns(catalog.classes()[c].matrix.elements() * kMomentumBytes);
    for (int32_t replica = 0; replica < set.replicas; ++replica) {
      const Load one = each.own(c, set.counterpart(owner, replica));
      saved -= one.in_receive + one.out_send;
      repeated += one.compute;
    }
    classes[c] = base::Int128{repeated} * 100 <= base::Int128{saved} * exchange_percent;
  }
  return classes;
}

}  // namespace muster::plan
