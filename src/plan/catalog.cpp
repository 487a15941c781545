#include "plan/catalog.h"

#include <algorithm>
#include <map>

namespace muster::plan {

const Holder* HolderSet::find(int32_t rank) const {
  const auto at =
      std::lower_bound(holders.begin(), holders.end(), rank, [](const Holder& h, int32_t r) { return h.rank < r; });
  return at != holders.end() && at->rank == rank ? &*at : nullptr;
}

int32_t HolderSet::counterpart(int32_t rank, int32_t replica) const {
  if (replicas == 1) return rank;
  const auto first = by_replica.begin() + std::ptrdiff_t{source_replica(rank)} * of_replica();
  const auto place = std::lower_bound(first, first + of_replica(), rank) - first;
  return by_replica[static_cast<size_t>(replica * of_replica() + place)];
}

bool HolderSet::stays_home(int32_t owner, bool each_replica) const {
  return (each_replica ? of_replica() == 1 : holders.size() == 1) && find(owner) != nullptr;
}

int32_t HolderSet::source_replica(int32_t owner) const {
  const Holder* holder = find(owner);
  return holder != nullptr ? holder->replica : owner % replicas;
}

bool Catalog::replicas_alike(Distributions these, Distributions others) const {
  for (size_t bit = 0; bit < alike_.size(); ++bit) {
    if ((these >> bit & 1) != 0 && (others & ~alike_[bit]) != 0) return false;
  }
  return true;
}

std::vector<KindCount> count_kinds(const Catalog& catalog, const std::vector<int32_t>& parameters) {
  std::map<int32_t, KindCount> kinds;
  for (const int32_t p : parameters) ++kinds.try_emplace(catalog.kind_of(p), KindCount{p, 0}).first->second.number;
  std::vector<KindCount> out;
  for (const auto& [kind, count] : kinds) out.push_back(count);
  return out;
}

}  // namespace muster::plan
