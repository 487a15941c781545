// Padding and gathering multiply what is sent by the number of ranks.
#include "base/int128.h"
#include "base/text.h"
#include "plan/strategies/strategies.h"

namespace muster::plan {

void check_traffic(const Catalog& catalog, const Plan& plan) {
  constexpr int64_t kMostElements = int64_t{1} << 52;
  base::Int128 elements = 0;
  auto add = [&](int32_t j, Transport transport) {
    const HolderSet& set = catalog.holders_of(j);
    const bool gathers = transport == Transport::kGather || transport == Transport::kGatherReduce;
    elements += base::Int128{static_cast<int64_t>(set.holders.size())} *
                (gathers ? catalog.class_at(j).matrix.elements() : set.largest);
  };
  for (int32_t j = 0; j < catalog.matrix_count(); ++j) {
    const Transport transport = plan.waves[plan.wave[j]].transport;
    if (transport != Transport::kRagged) add(j, transport);
  }
  for (const Wave& wave : plan.waves) {
    for (const ZeroMatrix& zero : wave.zeros) add(zero.like, wave.transport);
  }
  if (elements > kMostElements) {
    base::fail("strategy {}: padding and gathering past 2^52 elements", name(plan.strategy));
  }
}

}  // namespace muster::plan
