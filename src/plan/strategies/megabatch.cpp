// All matrices of one shape in one wave, an even number for each rank.
#include "plan/strategies/builder.h"

namespace muster::plan {

Plan build_megabatch(const Catalog& catalog, Padding padding) {
  Builder builder(catalog, Strategy::kMegabatch, padding);
  for (const ShapeGroup& group : groups_by_shape(catalog)) {
    const int32_t wave = builder.new_wave(Transport::kPadded);
    for (const std::vector<int32_t>& part : group.parts) {
      builder.spread(part, 0, ceil_div(part.size(), builder.ranks_of(part[0]).size()), wave);
    }
  }
  return builder.take();
}

}  // namespace muster::plan
