// Moves matrix fragments between registers and memory. A fragment is an 8x8 matrix of 16-bit elements spread over a
// warp: each lane has one register with two elements of a row.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

namespace muster::kernels::cuda::sm90 {

// Four 8x8 matrices.
struct Fragments {
  uint32_t v[4];
};

// Lane i passes the address of row i of the matrices, counted through all of them. A row has 16 bytes.
__device__ inline Fragments ldmatrix_x4(uint32_t at) {
  Fragments f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(f.v[0]), "=r"(f.v[1]), "=r"(f.v[2]), "=r"(f.v[3])
               : "r"(at)
               : "memory");
  return f;
}
__device__ inline void stmatrix_x4(uint32_t at, const Fragments& f) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(f.v[0]), "r"(f.v[1]),
               "r"(f.v[2]), "r"(f.v[3])
               : "memory");
}
__device__ inline void stmatrix_x4_transposed(uint32_t at, const Fragments& f) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(f.v[0]),
               "r"(f.v[1]), "r"(f.v[2]), "r"(f.v[3])
               : "memory");
}
__device__ inline void stmatrix_x1(uint32_t at, uint32_t v) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" ::"r"(at), "r"(v) : "memory");
}
__device__ inline void stmatrix_x1_transposed(uint32_t at, uint32_t v) {
  asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" ::"r"(at), "r"(v) : "memory");
}

// An 8x8 matrix whose upper triangle is replaced by the mirror image of the lower one.
__device__ inline uint32_t mirror_lower_triangle(uint32_t v, int lane) {
  uint32_t transposed;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(transposed) : "r"(v));
  const int right = lane % 4 * 2 - lane / 4;  // how far the lane's first element is to the right of the diagonal
  return __byte_perm(v, transposed, right > 0 ? 0x7654 : right == 0 ? 0x7610 : 0x3210);
}

// Volatile, so that the compiler does not move these loads down to their use: that cost 4,700 cycles per tile.
__device__ inline uint4 load_ahead(const void* p) {
  uint4 v;
  asm volatile("ld.global.nc.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
__device__ inline float2 load_pair_ahead(const void* p) {
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
// Rounds eight accumulators of a lane, of two 8-column blocks, to the fragments that stmatrix_x4 stores.
template <typename T>
__device__ inline Fragments pack_fragments(const float* v) {
  return {{pack<T>(v[0], v[1]), pack<T>(v[2], v[3]), pack<T>(v[4], v[5]), pack<T>(v[6], v[7])}};
}

}  // namespace muster::kernels::cuda::sm90
