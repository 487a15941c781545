// Rounds of as many matrices of one shape as there are ranks: one for each.
#include "plan/strategies/builder.h"
#include "plan/strategies/experts.h"

namespace muster::plan {

Plan build_chunked(const Catalog& catalog, Padding padding) {
  Builder builder(catalog, Strategy::kChunked, padding);
  const std::map<int32_t, std::vector<int32_t>> experts = expert_kinds(catalog, [](const Parameter&) { return true; });
  for (const auto& [kind, parameters] : experts) gather_experts(builder, catalog, parameters);
  for (const ShapeGroup& group : groups_by_shape(catalog)) {
    if (experts.contains(catalog.kind_of(catalog.parameter_of(group.parts[0][0])))) continue;
    std::vector<int32_t> waves;
    for (const std::vector<int32_t>& part : group.parts) {
      const size_t ranks = builder.ranks_of(part[0]).size();
      // Matrices that one rank holds whole need no rounds.
      const size_t each = ranks == 1 ? part.size() : 1;
      for (size_t round = 0; round < ceil_div(part.size(), each * ranks); ++round) {
        if (round == waves.size()) waves.push_back(builder.new_wave(Transport::kPadded));
        builder.spread(part, round * each * ranks, each, waves[round]);
      }
    }
  }
  return builder.take();
}

}  // namespace muster::plan
