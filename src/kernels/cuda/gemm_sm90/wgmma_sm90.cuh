// wgmma: a warpgroup's asynchronous matrix multiply-accumulate on the tensor cores, with operands in shared memory.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

namespace muster::kernels::cuda {

// The dimension along which an operand is contiguous in memory: the inner one (K), or the outer one (MN).
enum class Major : uint8_t { kK, kMN };

namespace sm90 {

// Describes a 64-deep operand in shared memory to wgmma, from k-step `k` (16 deep) on: rows of 128 bytes, swizzled by
// 128 bytes. K-major: eight rows are 1024 bytes. MN-major: a row has 64 elements of the outer dimension, and the next
// 64 are 8192 bytes away.
template <Major kMajor>
__device__ inline uint64_t wgmma_descriptor(uint32_t operand, int k) {
  constexpr uint64_t kLeadingBytes = kMajor == Major::kMN ? 8192 : 16;
  const uint32_t address = operand + k * (kMajor == Major::kMN ? 2048 : 32);
  return uint64_t{(address & 0x3FFFF) >> 4} | kLeadingBytes >> 4 << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

#define MUSTER_ACCUMULATORS_8(d, i)                                                                           \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define MUSTER_ACCUMULATORS(d)                                                                  \
  MUSTER_ACCUMULATORS_8(d, 0), MUSTER_ACCUMULATORS_8(d, 8), MUSTER_ACCUMULATORS_8(d, 16),       \
      MUSTER_ACCUMULATORS_8(d, 24), MUSTER_ACCUMULATORS_8(d, 32), MUSTER_ACCUMULATORS_8(d, 40), \
      MUSTER_ACCUMULATORS_8(d, 48), MUSTER_ACCUMULATORS_8(d, 56)
#define MUSTER_WGMMA(TYPE, N, ACCUMULATORS, OVERWRITE, A, B, MAJOR_A, MAJOR_B, ...)                                  \
  asm volatile("{\n.reg .pred add;\nsetp.eq.b32 add, " OVERWRITE ", 0;\nwgmma.mma_async.sync.aligned.m64n" N         \
               "k16.f32." TYPE "." TYPE " {" ACCUMULATORS "}, " A ", " B ", add, 1, 1, " MAJOR_A ", " MAJOR_B ";\n}" \
               : __VA_ARGS__                                                                                         \
               : "l"(a), "l"(b), "r"(static_cast<int>(overwrite)), "n"(static_cast<int>(kA)),                        \
                 "n"(static_cast<int>(kB)))
#define MUSTER_OPERANDS_64                                                                                           \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"   \
  "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57," \
  "%58,%59,%60,%61,%62,%63"
#define MUSTER_OPERANDS_128                                                                                          \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"   \
  "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57," \
  "%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85," \
  "%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,"  \
  "%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
// d += a b, or d = a b if `overwrite`; a is 64 x 16, b is 16 x 128. kA and kB are the operands' majors.
template <typename T, Major kA, Major kB>
__device__ inline void wgmma_m64n128k16(float (&d)[64], uint64_t a, uint64_t b, bool overwrite) {
  if constexpr (std::is_same_v<T, __half>) {
    MUSTER_WGMMA("f16", "128", MUSTER_OPERANDS_64, "%66", "%64", "%65", "%67", "%68", MUSTER_ACCUMULATORS(d));
  } else {
    MUSTER_WGMMA("bf16", "128", MUSTER_OPERANDS_64, "%66", "%64", "%65", "%67", "%68", MUSTER_ACCUMULATORS(d));
  }
}
// The same with b of 16 x 256; d[0] has the left 128 columns and d[1] the right ones.
template <typename T, Major kA, Major kB>
__device__ inline void wgmma_m64n256k16(float (&d)[2][64], uint64_t a, uint64_t b, bool overwrite) {
  if constexpr (std::is_same_v<T, __half>) {
    MUSTER_WGMMA("f16", "256", MUSTER_OPERANDS_128, "%130", "%128", "%129", "%131", "%132", MUSTER_ACCUMULATORS(d[0]),
                 MUSTER_ACCUMULATORS(d[1]));
  } else {
    MUSTER_WGMMA("bf16", "256", MUSTER_OPERANDS_128, "%130", "%128", "%129", "%131", "%132", MUSTER_ACCUMULATORS(d[0]),
                 MUSTER_ACCUMULATORS(d[1]));
  }
}
#undef MUSTER_OPERANDS_128
#undef MUSTER_OPERANDS_64
#undef MUSTER_WGMMA
#undef MUSTER_ACCUMULATORS
#undef MUSTER_ACCUMULATORS_8

// Orders register accesses before the wgmmas that follow.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Makes the wgmmas issued since the last commit one group.
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most the last kPending groups are unfinished.
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

}  // namespace sm90
}  // namespace muster::kernels::cuda
