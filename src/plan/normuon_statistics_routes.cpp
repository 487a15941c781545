#include "plan/normuon_statistics_routes.h"

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

namespace {

// The lines of one matrix, as `rank` sees them.
struct MatrixLines {
  const HolderSet& holders;
  const HolderSet& keepers;
  const NormuonStatistics& statistics;
  int32_t index;  // within the parameter
  int32_t rank;
  const std::function<void(const LineRoute&)>& visit;

  void route(const Holder& keeper, int32_t assembler, bool in, bool out) const {
    visit({statistics.part_of(index, keeper.position), keeper.rank, assembler, in, out});
  }
  int32_t first_holder(int32_t replica) const {
    for (const Holder& h : holders.holders) {
      if (h.replica == replica) return h.rank;
    }
    return -1;
  }
};

// One rank orthogonalizes for all replicas, or one in each replica.
void visit_owned(const MatrixLines& lines, int32_t owner, bool each) {
  const auto owner_of = [&](int32_t replica) { return each ? lines.holders.counterpart(owner, replica) : owner; };
  const int32_t source = line_source(lines.holders, lines.keepers, owner);
  const Holder* const held = lines.holders.find(lines.rank);
  const bool owns = each ? held != nullptr && owner_of(held->replica) == lines.rank : owner == lines.rank;
  const auto add = [&](const Holder& keeper) {
    if (owner_of(keeper.replica) != lines.rank && keeper.rank != lines.rank) return;
    lines.route(keeper, owner_of(keeper.replica), each || keeper.replica == source, true);
  };
  if (owns) {
    for (const Holder& keeper : lines.keepers.holders) add(keeper);
  } else if (const Holder* const mine = lines.keepers.find(lines.rank)) {
    add(*mine);
  }
}

// Every holder orthogonalizes for itself and keeps the new lines that are its own. A rank that keeps lines and holds no
// elements gets them from the first holder of its replica.
void visit_gathered(const MatrixLines& lines) {
  const Holder* const held = lines.holders.find(lines.rank);
  for (const Holder& keeper : lines.keepers.holders) {
    const bool holds = lines.holders.find(keeper.rank) != nullptr;
    const int32_t back = holds ? keeper.rank : lines.first_holder(keeper.replica);
    if (keeper.rank == lines.rank) {
      for (const Holder& h : lines.holders.holders) {
        if (h.replica == keeper.replica) lines.route(keeper, h.rank, true, h.rank == back);
      }
    } else if (held != nullptr && held->replica == keeper.replica) {
      lines.route(keeper, lines.rank, true, lines.rank == back);
    }
  }
}

}  // namespace

void for_each_line_route(const Catalog& catalog, const Plan& plan, int32_t matrix, int32_t rank,
                         const std::function<void(const LineRoute&)>& visit) {
  const MatrixClass& c = catalog.class_at(matrix);
  const HolderSet* const keepers = catalog.line_set(c);
  if (keepers == nullptr) return;
  const MatrixLines lines{.holders = catalog.holder_set(c),
                          .keepers = *keepers,
                          .statistics = *catalog.statistics(catalog.parameter_of(matrix)),
                          .index = catalog.index_in_parameter(matrix),
                          .rank = rank,
                          .visit = visit};
  if (plan.waves[plan.wave[matrix]].transport == Transport::kGather) {
    visit_gathered(lines);
  } else {
    visit_owned(lines, plan.owner[matrix], in_each_replica(plan, matrix));
  }
}

}  // namespace muster::plan
