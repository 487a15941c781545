#include "plan/waves.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>

#include "plan/wide.h"

namespace muster::plan {

bool stays_home(const Catalog& catalog, int32_t matrix, int32_t owner) {
  const HolderSet& set = catalog.holders_of(matrix);
  return set.holders.size() == 1 && set.holders[0].rank == owner;
}

std::vector<int32_t> assign_waves(const Catalog& catalog, const CostModel& cost, const std::vector<int32_t>& owner,
                                  int32_t count) {
  const int32_t n = catalog.matrix_count();
  std::vector<int64_t> time(n);  // of each matrix at its owner
  for (int32_t j = 0; j < n; ++j) {
    const Load own = cost.own(catalog.class_of(j), owner[j]);
    time[j] = own.compute + own.in_receive + own.out_send;
  }
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return std::tuple(time[a], catalog.class_of(a), a) < std::tuple(time[b], catalog.class_of(b), b);
  });

  using Pair = std::array<int64_t, 2>;  // travelling, staying
  std::vector<Pair> total(catalog.problem().ranks);
  std::vector<Pair> before(catalog.problem().ranks);
  for (const int32_t j : order) total[owner[j]][stays_home(catalog, j, owner[j])] += time[j];
  std::vector<int32_t> wave(n);
  std::vector<int32_t> used(count, 0);
  for (const int32_t j : order) {
    const size_t kind = stays_home(catalog, j, owner[j]);
    int64_t& at = before[owner[j]][kind];
    // The wave that the middle of this matrix's time falls into.
    wave[j] = static_cast<int32_t>(mul_div(2 * at + time[j], count, 2 * total[owner[j]][kind]));
    at += time[j];
    used[wave[j]] = 1;
  }
  std::exclusive_scan(used.begin(), used.end(), used.begin(), 0);
  for (int32_t& w : wave) w = used[w];
  return wave;
}

}  // namespace muster::plan
