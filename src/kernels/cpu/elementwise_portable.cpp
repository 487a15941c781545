#include "kernels/cpu/elementwise_loops.h"

namespace muster::kernels::cpu {

const Elementwise* portable_elementwise() {
  static constexpr Elementwise table = elementwise_table("portable");
  return &table;
}

const Elementwise& best_elementwise() {
  if (const Elementwise* table = avx512_elementwise()) return *table;
  if (const Elementwise* table = avx2_elementwise()) return *table;
  return *portable_elementwise();
}

}  // namespace muster::kernels::cpu
