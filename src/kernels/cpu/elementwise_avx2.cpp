// Compiled with the flags for AVX2 if the compiler knows them; FMA stays off.
#include "kernels/cpu/elementwise.h"

#ifdef __AVX2__
#include "kernels/cpu/elementwise_loops.h"
#endif

namespace muster::kernels::cpu {

const Elementwise* avx2_elementwise() {
#ifdef __AVX2__
  static constexpr Elementwise table = elementwise_table("avx2");
  if (__builtin_cpu_supports("avx2")) return &table;
#endif
  return nullptr;
}

}  // namespace muster::kernels::cpu
