// Each matrix is an exchange of its own; owners take turns.
#include <map>

#include "plan/strategies/builder.h"

namespace muster::plan {

Plan build_per_matrix(const Catalog& catalog) {
  Builder builder(catalog, Strategy::kPerMatrix);
  std::map<int32_t, size_t> turn;  // by peers
  for (int32_t j = 0; j < catalog.matrix_count(); ++j) {
    const size_t slot = turn[catalog.holders_of(j).peers]++ % builder.ranks_of(j).size();
    builder.place(j, slot, builder.new_wave(Transport::kRagged));
  }
  return builder.take();
}

}  // namespace muster::plan
