// The instructions of Hopper that C++ has no words for.
#pragma once

#include <cstdint>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

namespace muster::kernels::cuda::sm90 {

__device__ inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

// Barriers in shared memory. Waiting is for the phase of a parity to be complete.
__device__ inline void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
__device__ inline void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void barrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra over;\nbra again;\nover:\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
// Where another block of the cluster has what is here at an address; arriving there.
__device__ inline uint32_t address_in(uint32_t block, uint32_t address) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}
__device__ inline void barrier_arrive_there(uint32_t there) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
}
// All threads of a cluster that have not returned.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
__device__ inline void warpgroup_sync(int id) { asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory"); }

// The bulk tensor copy engine.
__device__ inline void load_box(uint32_t to, const CUtensorMap& map, uint32_t barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(to),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z)
      : "memory");
}
// Into both blocks of a cluster, at the same place, announced at the same barrier of each.
__device__ inline void load_box_for_both(uint32_t to, const CUtensorMap& map, uint32_t barrier, int x, int y, int z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(uint16_t{3})
      : "memory");
}
__device__ inline void store_box(const CUtensorMap& map, uint32_t from, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map), "r"(from),
               "r"(x), "r"(y), "r"(z)
               : "memory");
}
__device__ inline void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// All of this thread's but the last kUnread have been read from shared memory.
template <int kUnread = 0>
__device__ void stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kUnread) : "memory");
}
__device__ inline void stores_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// What ordinary stores wrote to shared memory is there for the copy engine.
__device__ inline void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A tile in shared memory for the tensor cores, rows of 128 bytes, swizzled by 128. Along the inner dim: eight rows are
// 1024 bytes. Across it (transposed): 64 elements of the outer dim are a row; 64 more are 8192 bytes away.
__device__ inline uint64_t tile_along(uint32_t address) {
  return uint64_t{(address & 0x3FFFF) >> 4} | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}
__device__ inline uint64_t tile_across(uint32_t address) {
  return uint64_t{(address & 0x3FFFF) >> 4} | uint64_t{8192 >> 4} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

// d += a b for a of 64 x 16 and b of 16 x 128, or of 16 x 256 and d in two halves; d = a b if `first`.
#define MUSTER_8(d, i)                                                                                        \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define MUSTER_64(d)                                                                                                   \
  MUSTER_8(d, 0), MUSTER_8(d, 8), MUSTER_8(d, 16), MUSTER_8(d, 24), MUSTER_8(d, 32), MUSTER_8(d, 40), MUSTER_8(d, 48), \
      MUSTER_8(d, 56)
#define MUSTER_WGMMA(TYPE, N, REGISTERS, FIRST, A, B, ACROSS_A, ACROSS_B, ...)                                       \
  asm volatile("{\n.reg .pred more;\nsetp.eq.b32 more, " FIRST ", 0;\nwgmma.mma_async.sync.aligned.m64n" N           \
               "k16.f32." TYPE "." TYPE " {" REGISTERS "}, " A ", " B ", more, 1, 1, " ACROSS_A ", " ACROSS_B ";\n}" \
               : __VA_ARGS__                                                                                         \
               : "l"(a), "l"(b), "r"(static_cast<int>(first)), "n"(static_cast<int>(kAcrossA)),                      \
                 "n"(static_cast<int>(kAcrossB)))
#define MUSTER_REGISTERS_64                                                                                          \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"   \
  "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57," \
  "%58,%59,%60,%61,%62,%63"
#define MUSTER_REGISTERS_128                                                                                         \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"   \
  "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57," \
  "%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85," \
  "%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,"  \
  "%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
template <typename T, bool kAcrossA, bool kAcrossB>
__device__ inline void multiply_add(float (&d)[64], uint64_t a, uint64_t b, bool first) {
  if constexpr (std::is_same_v<T, __half>) {
    MUSTER_WGMMA("f16", "128", MUSTER_REGISTERS_64, "%66", "%64", "%65", "%67", "%68", MUSTER_64(d));
  } else {
    MUSTER_WGMMA("bf16", "128", MUSTER_REGISTERS_64, "%66", "%64", "%65", "%67", "%68", MUSTER_64(d));
  }
}
template <typename T, bool kAcrossA, bool kAcrossB>
__device__ inline void multiply_add(float (&d)[64], float (&e)[64], uint64_t a, uint64_t b, bool first) {
  if constexpr (std::is_same_v<T, __half>) {
    MUSTER_WGMMA("f16", "256", MUSTER_REGISTERS_128, "%130", "%128", "%129", "%131", "%132", MUSTER_64(d),
                 MUSTER_64(e));
  } else {
    MUSTER_WGMMA("bf16", "256", MUSTER_REGISTERS_128, "%130", "%128", "%129", "%131", "%132", MUSTER_64(d),
                 MUSTER_64(e));
  }
}
#undef MUSTER_REGISTERS_128
#undef MUSTER_REGISTERS_64
#undef MUSTER_WGMMA
#undef MUSTER_64
#undef MUSTER_8
__device__ inline void multiply_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void multiply_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ inline void multiply_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Four 8x8 matrices between registers and shared memory; every lane gives the address of one row.
struct Quad {
  uint32_t v[4];
};
__device__ inline void store_quad(uint32_t at, const Quad& q) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(q.v[0]), "r"(q.v[1]),
               "r"(q.v[2]), "r"(q.v[3])
               : "memory");
}
__device__ inline void store_quad_transposed(uint32_t at, const Quad& q) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(q.v[0]),
               "r"(q.v[1]), "r"(q.v[2]), "r"(q.v[3])
               : "memory");
}
__device__ inline void store_block(uint32_t at, uint32_t v) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(at), "r"(v) : "memory");
}
__device__ inline void store_block_transposed(uint32_t at, uint32_t v) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(at), "r"(v) : "memory");
}
// A block of 8 x 8 with what is below its diagonal above it, too.
__device__ inline uint32_t mirrored_up(uint32_t v, int lane) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(v));
  const int right = lane % 4 * 2 - lane / 4;  // of the diagonal, a lane's first of two elements
  return __byte_perm(v, transposed, right > 0 ? 0x7654 : right == 0 ? 0x7610 : 0x3210);
}
__device__ inline Quad load_quad(uint32_t at) {
  Quad q;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(q.v[0]), "=r"(q.v[1]), "=r"(q.v[2]), "=r"(q.v[3])
               : "r"(at)
               : "memory");
  return q;
}

__device__ inline uint4 load_global(const void* p) {
  uint4 v;
  // Volatile: it is issued here, ahead of its use.
  asm volatile("ld.global.nc.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
__device__ inline float2 load_pair(const void* p) {
  float2 v;
  asm volatile("ld.global.nc.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(p));
  return v;
}
__device__ inline void store_shared(uint32_t at, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

template <typename T>
__device__ inline uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}
template <typename T>
__device__ inline float2 unpack(uint32_t v) {
  if constexpr (std::is_same_v<T, __half>) {
    return __half22float2(reinterpret_cast<const __half2&>(v));
  } else {
    return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(v));
  }
}

}  // namespace muster::kernels::cuda::sm90
