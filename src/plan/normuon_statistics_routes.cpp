#include "plan/statistics_routes.h"

#include "plan/replicas.h"

namespace muster::plan {

int32_t line_source(const HolderSet& holders, const HolderSet& keepers, int32_t owner) {
  const Holder* const keeper = keepers.find(owner);
  return holders.find(owner) == nullptr && keeper != nullptr ? keeper->replica : holders.source_replica(owner);
}

bool keeps_all_lines(const Catalog& catalog, const MatrixClass& c, int32_t rank) {
  const HolderSet* const keepers = catalog.line_set(c);
  if (keepers == nullptr) return true;
  const Holder* const mine = keepers->find(rank);
  return mine != nullptr && mine->elements == c.matrix.lines();
}

void for_each_line_route(const Catalog& catalog, const Plan& plan, int32_t matrix, int32_t rank,
                         const std::function<void(const LineRoute&)>& visit) {
  const MatrixClass& c = catalog.class_at(matrix);
  const HolderSet* const keepers = catalog.line_set(c);
  if (keepers == nullptr) return;
  const HolderSet& holders = catalog.holder_set(c);
  const Statistics& statistics = *catalog.statistics(catalog.parameter_of(matrix));
  const auto route = [&](const Holder& keeper, int32_t assembler, bool in, bool out) {
    const Statistics::Part part = statistics.part_of(catalog.index_in_parameter(matrix), keeper.position);
    visit({part, keeper.rank, assembler, in, out});
  };
  const Holder* const mine = keepers->find(rank);

  if (plan.waves[plan.wave[matrix]].transport != Transport::kGather) {
    // One rank orthogonalizes for all replicas, or one for each.
    const bool each = in_each_replica(plan, matrix);
    const int32_t owner = plan.owner[matrix];
    const auto owner_of = [&](int32_t replica) { return each ? holders.counterpart(owner, replica) : owner; };
    const int32_t source = line_source(holders, *keepers, owner);
    const Holder* const held = holders.find(rank);
    const bool owns = each ? held != nullptr && owner_of(held->replica) == rank : owner == rank;
    const auto add = [&](const Holder& keeper) {
      if (owner_of(keeper.replica) != rank && keeper.rank != rank) return;
      route(keeper, owner_of(keeper.replica), each || keeper.replica == source, true);
    };
    if (owns) {
      for (const Holder& keeper : keepers->holders) add(keeper);
    } else if (mine != nullptr) {
      add(*mine);
    }
    return;
  }

  // Every holder orthogonalizes for itself. It keeps the new lines that are its own; a rank that keeps lines and holds
  // no elements gets them from the first holder of its replica.
  const auto first_of = [&](int32_t replica) {
    for (const Holder& h : holders.holders) {
      if (h.replica == replica) return h.rank;
    }
    return -1;
  };
  const Holder* const held = holders.find(rank);
  for (const Holder& keeper : keepers->holders) {
    const int32_t back = holders.find(keeper.rank) != nullptr ? keeper.rank : first_of(keeper.replica);
    if (keeper.rank == rank) {
      for (const Holder& h : holders.holders) {
        if (h.replica == keeper.replica) route(keeper, h.rank, true, h.rank == back);
      }
    } else if (held != nullptr && held->replica == keeper.replica) {
      route(keeper, rank, true, rank == back);
    }
  }
}

}  // namespace muster::plan
