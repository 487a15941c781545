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

// d += a b for a of 64 x 16 and b of 16 x 128; d = a b if `first`.
#define MUSTER_WGMMA(TYPE)                                                                                           \
  asm volatile(                                                                                                      \
      "{\n.reg .pred more;\nsetp.eq.b32 more, %66, 0;\n"                                                             \
      "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE                                                   \
      " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28," \
      "%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55," \
      "%56,%57,%58,%59,%60,%61,%62,%63}, %64, %65, more, 1, 1, %67, %68;\n}"                                         \
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),  \
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),       \
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),      \
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),      \
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),      \
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),      \
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),      \
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])                    \
      : "l"(a), "l"(b), "r"(static_cast<int>(first)), "n"(static_cast<int>(kAcrossA)),                               \
        "n"(static_cast<int>(kAcrossB)))
template <typename T, bool kAcrossA, bool kAcrossB>
__device__ inline void multiply_add(float (&d)[64], uint64_t a, uint64_t b, bool first) {
  if constexpr (std::is_same_v<T, __half>) {
    MUSTER_WGMMA("f16");
  } else {
    MUSTER_WGMMA("bf16");
  }
}
#undef MUSTER_WGMMA
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
__device__ inline uint32_t load_word(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
__device__ inline void store_word(uint32_t at, uint32_t v) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
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
