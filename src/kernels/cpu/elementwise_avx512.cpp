// Compiled with the flags for AVX-512 if the compiler knows them; FMA stays off.
#include "kernels/cpu/elementwise.h"

#ifdef __AVX512BW__
#include "kernels/cpu/elementwise_loops.h"
#endif

namespace muster::kernels::cpu {

const Elementwise* avx512_elementwise() {
#ifdef __AVX512BW__
  static constexpr Elementwise table = elementwise_table("avx512");
  const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (has) return &table;
#endif
  return nullptr;
}

}  // namespace muster::kernels::cpu
