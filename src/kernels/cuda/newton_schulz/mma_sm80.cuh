// Products of small matrices by one warp, with f32 sums, on the tensor cores of sm_80 and later: of TF32 matrices
// (m16n8k8) and of half types (m16n8k16).
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <type_traits>

#include "kernels/cuda/gemm_sm90/matrix_fragments_sm90.cuh"  // of which ldmatrix needs sm_75 only

namespace muster::kernels::cuda {

// Fragments of a warp, where g = lane / 4 and t = lane % 4.
struct Tf32A {
  uint32_t v[4];  // (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4) of 16 x 8
};
struct Tf32B {
  uint32_t v[2];  // (t, g), (t + 4, g) of 8 x 8
};
struct MmaSums {
  float v[4] = {};  // (g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1) of 16 x 8
};

__device__ inline uint32_t to_tf32(float value) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}

__device__ inline void multiply_add(MmaSums& sums, const Tf32A& a, const Tf32B& b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sums.v[0]), "+f"(sums.v[1]), "+f"(sums.v[2]), "+f"(sums.v[3])
      : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[0]), "r"(b.v[1]));
}

// From a row-major matrix of f32 in shared memory that starts at its element (0, 0) for this warp.
__device__ inline void load_a(const float* from, int stride, float (&values)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* const at = from + lane / 4 * stride + lane % 4;
  values[0] = at[0];
  values[1] = at[8 * stride];
  values[2] = at[4];
  values[3] = at[8 * stride + 4];
}

__device__ inline Tf32B load_b(const float* from, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* const at = from + lane % 4 * stride + lane / 4;
  return {{__float_as_uint(at[0]), __float_as_uint(at[4 * stride])}};
}

// A block of 16 x 16 halves of a row-major matrix in shared memory; rows are 16-byte aligned.
__device__ inline sm90::Fragments load_block(const uint16_t* from, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return sm90::ldmatrix_x4(static_cast<uint32_t>(__cvta_generic_to_shared(from + lane % 16 * stride + lane / 16 * 8)));
}

// sums += A B^T for blocks of 16 x 16; sums[0] has the first eight columns.
template <typename T>
__device__ void multiply_add_transposed(MmaSums (&sums)[2], const sm90::Fragments& a, const sm90::Fragments& b) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float(&s)[4] = sums[half].v;
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
          : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[half]), "r"(b.v[half + 2]));
    } else {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
          : "r"(a.v[0]), "r"(a.v[1]), "r"(a.v[2]), "r"(a.v[3]), "r"(b.v[half]), "r"(b.v[half + 2]));
    }
  }
}

}  // namespace muster::kernels::cuda
