// What the strategies of other systems share: waves are filled slot by slot, with zero matrices where a round is not
// full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "muster/plan.h"
#include "plan/catalog.h"
#include "plan/strategies/strategies.h"

namespace muster::plan {

// Matrices of one shape, layout and dtype; those on the same ranks make a part. Parts run side by side.
struct ShapeGroup {
  std::vector<std::vector<int32_t>> parts;
};
std::vector<ShapeGroup> groups_by_shape(const Catalog& catalog);

class Builder {
 public:
  Builder(const Catalog& catalog, Strategy strategy, Padding padding = Padding::kZeros)
      : catalog_(catalog), padding_(padding) {
    plan_.strategy = strategy;
    plan_.elementwise = ElementwiseOrder::kFirst;  // peers make a call of its own; here it is part of the first round
    plan_.owner.assign(catalog.matrix_count(), 0);
    plan_.wave.assign(catalog.matrix_count(), 0);
  }

  void post_all_first() { plan_.in_flight = kAllInFlight; }

  int32_t new_wave(Transport transport) {
    plan_.waves.push_back({transport, {}});
    return static_cast<int32_t>(plan_.waves.size()) - 1;
  }

  const std::vector<Holder>& ranks_of(int32_t j) const { return catalog_.holders_of(j).holders; }

  void place_on(int32_t j, int32_t rank, int32_t wave) {
    plan_.owner[j] = rank;
    plan_.wave[j] = wave;
  }
  void place(int32_t j, size_t slot, int32_t wave) { place_on(j, ranks_of(j)[slot].rank, wave); }

  // An owner in every replica.
  void repeat(int32_t j) {
    plan_.each_replica.resize(plan_.owner.size());
    plan_.each_replica[j] = true;
  }

  void pad_on(int32_t like, int32_t rank, int32_t wave) {
    if (padding_ == Padding::kZeros) plan_.waves[wave].zeros.push_back({like, rank});
  }
  void pad(int32_t like, size_t slot, int32_t wave) { pad_on(like, ranks_of(like)[slot].rank, wave); }

  // Gives `each` consecutive matrices of a part to every rank, and zero matrices to the ranks that are left.
  void spread(const std::vector<int32_t>& part, size_t begin, size_t each, int32_t wave) {
    const size_t ranks = ranks_of(part[0]).size();
    for (size_t slot = 0; slot < each * ranks; ++slot) {
      if (begin + slot < part.size()) {
        place(part[begin + slot], slot / each, wave);
      } else if (ranks > 1) {
        pad(part.back(), slot / each, wave);
      }
    }
  }

  Plan take() {
    if (plan_.waves.empty()) new_wave(Transport::kRagged);
    return std::move(plan_);
  }

 private:
  const Catalog& catalog_;
  const Padding padding_;
  Plan plan_;
};

inline size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }

}  // namespace muster::plan
