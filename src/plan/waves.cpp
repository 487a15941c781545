#include "plan/waves.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/int128.h"

namespace muster::plan {

WaveCutter::WaveCutter(const Catalog& catalog, const CostModel& cost, const std::vector<int32_t>& owner, WaveCut cut,
                       WaveOrder wave_order)
    : items_(catalog.matrix_count()), item_of_(catalog.matrix_count()) {
  const int32_t n = catalog.matrix_count();  // there are no more shapes than that
  const bool a_rank_each = cut == WaveCut::kByTime || cut == WaveCut::kByCompute;
  for (int32_t j = 0; j < n; ++j) {
    const Load own = cost.own(catalog.class_of(j), owner[j]);
    const bool each = cost.in_each_replica(catalog.class_of(j));
    const int64_t time = own.compute + (cut == WaveCut::kByCompute ? 0 : own.in_receive + own.out_send);
    item_of_[j] = cut == WaveCut::kByShape ? catalog.class_at(j).shape : j;
    Item& item = items_[item_of_[j]];
    if (a_rank_each)
      item.sequence = 4 * int64_t{owner[j]} + 2 * each + catalog.holders_of(j).stays_home(owner[j], each);
    item.largest = std::max(item.largest, time);
    item.time += time;
    item.kind = catalog.class_of(j);
  }
  std::vector<int32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return std::tuple(items_[a].largest, items_[a].kind, a) < std::tuple(items_[b].largest, items_[b].kind, b);
  });
  if (wave_order == WaveOrder::kSmallLast) std::reverse(order.begin(), order.end());
  line_up(order);
}

WaveCutter::WaveCutter(const Catalog& catalog, const CostModel& cost, const std::vector<int32_t>& owner,
                       const std::vector<int32_t>& order)
    : items_(catalog.matrix_count()), item_of_(catalog.matrix_count()) {
  const auto parameters = static_cast<int32_t>(catalog.problem().parameters.size());
  std::vector<int32_t> place(parameters, parameters);
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<int32_t>(i);
  for (int32_t j = 0; j < catalog.matrix_count(); ++j) {
    const Load own = cost.own(catalog.class_of(j), owner[j]);
    items_[j].time = own.compute + own.in_receive + own.out_send;
    item_of_[j] = j;
  }
  std::vector<int32_t> row(item_of_);
  std::stable_sort(row.begin(), row.end(), [&](int32_t a, int32_t b) {
    return place[catalog.parameter_of(a)] < place[catalog.parameter_of(b)];
  });
  line_up(row);
}

void WaveCutter::line_up(const std::vector<int32_t>& order) {
  for (const int32_t i : order) {
    int64_t& before = total_[items_[i].sequence];
    items_[i].middle = 2 * before + items_[i].time;
    before += items_[i].time;
  }
}

std::vector<int32_t> WaveCutter::waves(int32_t count) const {
  std::vector<int32_t> wave;
  std::vector<int32_t> used(count, 0);
  for (const int32_t i : item_of_) {
    const Item& item = items_[i];
    wave.push_back(static_cast<int32_t>(base::mul_div(item.middle, count, 2 * total_.at(item.sequence))));
    used[wave.back()] = 1;
  }
  std::exclusive_scan(used.begin(), used.end(), used.begin(), 0);
  for (int32_t& w : wave) w = used[w];
  return wave;
}

}  // namespace muster::plan
