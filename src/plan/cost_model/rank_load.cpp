#include "plan/cost_model/rank_load.h"

#include <algorithm>

namespace muster::plan {

namespace {

uint64_t key_of(int32_t rank, int32_t id) { return static_cast<uint64_t>(rank) << 32 | static_cast<uint32_t>(id); }

}  // namespace

RankLoad::RankLoad(const Catalog& catalog, const CostModel& cost, int64_t exchange_percent)
    : catalog_(catalog), cost_(cost), percent_(exchange_percent), loads_(catalog.problem().ranks) {
  std::vector<int64_t> count(catalog.classes().size());
  for (int32_t j = 0; j < catalog.matrix_count(); ++j) ++count[catalog.class_of(j)];
  for (int32_t c = 0; c < static_cast<int32_t>(count.size()); ++c) {
    for (const Holder& holder : catalog.holder_set(catalog.classes()[c]).holders) {
      loads_[holder.rank] += cost.hold(c, holder) * count[c];
    }
  }
  const std::vector<int64_t> elementwise = cost.held_elementwise_ns();
  for (size_t r = 0; r < loads_.size(); ++r) loads_[r].compute += elementwise[r];
  for (const Load& load : loads_) sum_ += load.total(percent_);
}

int32_t RankLoad::count(const std::unordered_map<uint64_t, int32_t>& counts, int32_t rank, int32_t key) const {
  const auto at = counts.find(key_of(rank, key));
  return at == counts.end() ? 0 : at->second;
}

int64_t RankLoad::start_ns(int32_t rank, int32_t c, int32_t owned) const {
  const MatrixClass& matrices = catalog_.classes()[c];
  const HolderSet& set = catalog_.holder_set(matrices);
  int64_t ns = 0;
  if (count(shapes_, rank, matrices.shape) == owned) ns += cost_.table().batch_ns;
  if (count(peers_, rank, set.peers) == owned) {
    const size_t holders = cost_.in_each_replica(c) ? set.of_replica() : set.holders.size();
    const auto others = static_cast<int64_t>(holders) - (set.find(rank) != nullptr);
    ns += 2 * others * cost_.table().message_ns;
  }
  return ns;
}

Load RankLoad::owning(int32_t rank, int32_t c, int32_t owned) const {
  Load load = cost_.own(c, rank);
  load.start = start_ns(rank, c, owned);
  return load;
}

void RankLoad::change(int32_t rank, const Load& load) {
  sum_ -= loads_[rank].total(percent_);
  loads_[rank] += load;
  sum_ += loads_[rank].total(percent_);
}

// The ranks that orthogonalize a matrix of class c if `rank` does.
template <typename Visit>
void RankLoad::for_each_owner(int32_t rank, int32_t c, Visit visit) const {
  if (!cost_.in_each_replica(c)) return visit(rank);
  const HolderSet& set = catalog_.holders_of_class(c);
  for (int32_t replica = 0; replica < set.replicas; ++replica) visit(set.counterpart(rank, replica));
}

void RankLoad::add(int32_t rank, int32_t c) {
  const MatrixClass& matrices = catalog_.classes()[c];
  for_each_owner(rank, c, [&](int32_t owner) {
    change(owner, owning(owner, c, 0));
    ++shapes_[key_of(owner, matrices.shape)];
    ++peers_[key_of(owner, catalog_.holder_set(matrices).peers)];
  });
}

void RankLoad::remove(int32_t rank, int32_t c) {
  const MatrixClass& matrices = catalog_.classes()[c];
  for_each_owner(rank, c, [&](int32_t owner) {
    change(owner, owning(owner, c, 1) * -1);
    --shapes_[key_of(owner, matrices.shape)];
    --peers_[key_of(owner, catalog_.holder_set(matrices).peers)];
  });
}

int64_t RankLoad::total_with(int32_t rank, int32_t c) const {
  int64_t slowest = 0;
  for_each_owner(rank, c, [&](int32_t owner) {
    Load load = loads_[owner];
    slowest = std::max(slowest, (load += owning(owner, c, 0)).total(percent_));
  });
  return slowest;
}

int64_t RankLoad::total_without(int32_t rank, int32_t c) const {
  int64_t slowest = 0;
  for_each_owner(rank, c, [&](int32_t owner) {
    Load load = loads_[owner];
    slowest = std::max(slowest, (load -= owning(owner, c, 1)).total(percent_));
  });
  return slowest;
}

int64_t RankLoad::total_swapped(int32_t rank, int32_t gives, int32_t takes) const {
  Load load = loads_[rank];
  load -= owning(rank, gives, 1);
  return (load += owning(rank, takes, 0)).total(percent_);
}

RankLoad load_with_owners(const Catalog& catalog, const CostModel& cost, const std::vector<int32_t>& owner,
                          int64_t exchange_percent) {
  RankLoad load(catalog, cost, exchange_percent);
  for (int32_t j = 0; j < catalog.matrix_count(); ++j) load.add(owner[j], catalog.class_of(j));
  return load;
}

}  // namespace muster::plan
