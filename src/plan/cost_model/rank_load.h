// The running predicted time of every rank, as matrices find their owners.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "plan/catalog.h"
#include "plan/cost_model/cost_model.h"

namespace muster::plan {

class RankLoad {
 public:
  // Holders pay for what they hold; nothing is owned. Exchanges weigh `exchange_percent`.
  RankLoad(const Catalog& catalog, const CostModel& cost, int64_t exchange_percent = 100);

  int64_t total(int32_t rank) const { return loads_[rank].total(percent_); }
  int64_t sum() const { return sum_; }

  // Change which matrices a rank owns, by class. With an owner in each replica, those in its place change with it.
  void add(int32_t rank, int32_t c);
  void remove(int32_t rank, int32_t c);

  // A rank's total after such a change; with an owner in each replica, that of the slowest of them.
  int64_t total_with(int32_t rank, int32_t c) const;
  int64_t total_without(int32_t rank, int32_t c) const;
  int64_t total_swapped(int32_t rank, int32_t gives, int32_t takes) const;

  // The batch and messages that a matrix of class c alone starts on a rank: a batch if no other matrix there has its
  // shape, messages if no other has its holders. `owned` is 1 if the rank already owns this matrix, else 0.
  int64_t start_ns(int32_t rank, int32_t c, int32_t owned) const;

 private:
  template <typename Visit>
  void for_each_owner(int32_t rank, int32_t c, Visit visit) const;
  Load owning(int32_t rank, int32_t c, int32_t owned) const;
  int32_t count(const std::unordered_map<uint64_t, int32_t>& counts, int32_t rank, int32_t key) const;
  void change(int32_t rank, const Load& load);

  const Catalog& catalog_;
  const CostModel& cost_;
  const int64_t percent_;
  std::vector<Load> loads_;
  std::unordered_map<uint64_t, int32_t> shapes_;  // matrices owned, by rank and shape
  std::unordered_map<uint64_t, int32_t> peers_;   // by rank and the ranks they come from
  int64_t sum_ = 0;
};

// The load under a complete assignment of owners.
RankLoad load_with_owners(const Catalog& catalog, const CostModel& cost, const std::vector<int32_t>& owner,
                          int64_t exchange_percent = 100);

}  // namespace muster::plan
