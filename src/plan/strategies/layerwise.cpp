// Whole parameters, longest first, each to the holder with the least work so far.
#include <algorithm>
#include <map>

#include "plan/strategies/builder.h"

namespace muster::plan {

Plan build_layerwise(const Catalog& catalog, Padding /*it has none*/) {
  // Whole parameters, longest first by max * min^2, each to the holder with least so far.
  struct Unit {
    int64_t work = 0;
    std::vector<int32_t> matrices;
  };
  std::map<std::pair<int32_t, int32_t>, Unit> units;  // by parameter and peers
  for (int32_t j = 0; j < catalog.matrix_count(); ++j) {
    Unit& unit = units[{catalog.parameter_of(j), catalog.holders_of(j).peers}];
    unit.work += catalog.rows(j) * catalog.columns(j) * std::min(catalog.rows(j), catalog.columns(j));
    unit.matrices.push_back(j);
  }
  std::vector<const Unit*> order;
  for (const auto& [key, unit] : units) order.push_back(&unit);
  std::stable_sort(order.begin(), order.end(), [](const Unit* a, const Unit* b) { return a->work > b->work; });

  Builder builder(catalog, Strategy::kLayerwise);
  const int32_t wave = builder.new_wave(Transport::kRagged);
  std::vector<int64_t> load(catalog.problem().ranks);
  for (const Unit* unit : order) {
    const std::vector<Holder>& holders = builder.ranks_of(unit->matrices[0]);
    const auto least = std::min_element(holders.begin(), holders.end(), [&](const Holder& a, const Holder& b) {
      return std::pair(load[a.rank], a.rank) < std::pair(load[b.rank], b.rank);
    });
    load[least->rank] += unit->work;
    for (const int32_t j : unit->matrices) builder.place(j, static_cast<size_t>(least - holders.begin()), wave);
  }
  return builder.take();
}

}  // namespace muster::plan
