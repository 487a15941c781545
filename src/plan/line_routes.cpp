#include "plan/line_routes.h"

#include <vector>

#include "plan/replicas.h"

namespace muster::plan {

namespace {

// The parts of a matrix's statistics that concern `rank`: its own if it assembles nothing, else all.
std::vector<Statistics::Part> parts_for(const Statistics& statistics, int32_t index, int32_t rank, bool assembles) {
  if (rank == kAllRanks || assembles) return statistics.parts(index);
  const Statistics::Part mine = statistics.part_of(index, statistics.partition().position_of(rank));
  return mine.count > 0 ? std::vector{mine} : std::vector<Statistics::Part>{};
}

}  // namespace

void for_each_line_route(const Catalog& catalog, const Plan& plan, int32_t matrix, int32_t rank,
                         const std::function<void(const LineRoute&)>& visit) {
  const int32_t p = catalog.parameter_of(matrix);
  const Statistics* const statistics = catalog.statistics(p);
  if (statistics == nullptr || !catalog.class_at(matrix).matrix.normuon) return;
  const layout::Partition& partition = statistics->partition();
  const HolderSet& set = catalog.holders_of(matrix);
  const int32_t index = catalog.index_in_parameter(matrix);
  const bool each = in_each_replica(plan, matrix);
  const int32_t owner = plan.owner[matrix];
  if (plan.waves[plan.wave[matrix]].transport != Transport::kGather) {
    // One rank orthogonalizes for all replicas, or one for each.
    const auto owner_of = [&](int32_t replica) { return each ? set.counterpart(owner, replica) : owner; };
    const int32_t source = set.source_replica(owner);
    bool owns = rank == owner;
    for (int32_t replica = 0; each && replica < set.replicas; ++replica) owns = owns || owner_of(replica) == rank;
    for (const Statistics::Part& part : parts_for(*statistics, index, rank, owns)) {
      const int32_t replica = partition.replica(part.position);
      visit({part, partition.rank(part.position), owner_of(replica), each || replica == source, true});
    }
    return;
  }
  // Every holder orthogonalizes for itself. It keeps the new lines that are its own; a rank that keeps lines and holds
  // no elements gets them from the first holder of its replica.
  const bool holds = set.find(rank) != nullptr;
  for (const Statistics::Part& part : parts_for(*statistics, index, rank, holds)) {
    const int32_t replica = partition.replica(part.position);
    const int32_t keeper = partition.rank(part.position);
    bool first = true;
    for (const Holder& h : set.holders) {
      if (h.replica != replica) continue;
      const bool back = set.find(keeper) != nullptr ? h.rank == keeper : first;
      visit({part, keeper, h.rank, true, back});
      first = false;
    }
  }
}

bool keeps_all_lines(const Catalog& catalog, int32_t matrix, int32_t rank) {
  const Statistics* const statistics = catalog.statistics(catalog.parameter_of(matrix));
  if (statistics == nullptr || !catalog.class_at(matrix).matrix.normuon) return true;
  return statistics->has_all(catalog.index_in_parameter(matrix), statistics->partition().position_of(rank));
}

}  // namespace muster::plan
