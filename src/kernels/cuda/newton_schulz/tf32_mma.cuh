// m16n8k8 products of TF32 matrices with f32 sums, on the tensor cores of sm_80 and later.
#pragma once

#include <cstdint>

namespace muster::kernels::cuda {

// Fragments of a warp, where g = lane / 4 and t = lane % 4.
struct Tf32A {
  uint32_t v[4];  // (g, t), (g + 8, t), (g, t + 4), (g + 8, t + 4) of 16 x 8
};
struct Tf32B {
  uint32_t v[2];  // (t, g), (t + 4, g) of 8 x 8
};
struct Tf32Sums {
  float v[4] = {};  // (g, 2 t), (g, 2 t + 1), (g + 8, 2 t), (g + 8, 2 t + 1) of 16 x 8
};

__device__ inline uint32_t to_tf32(float value) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}

__device__ inline void multiply_add(Tf32Sums& sums, const Tf32A& a, const Tf32B& b) {
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

// Values that are TF32 already.
__device__ inline Tf32A exact_a(const float (&values)[4]) {
  Tf32A a;
#pragma unroll
  for (int i = 0; i < 4; ++i) a.v[i] = __float_as_uint(values[i]);
  return a;
}

// B = the transpose of a row-major matrix of 8 x 8 TF32 values; for products with rows.
__device__ inline Tf32B load_b_transposed(const float* from, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* const at = from + lane / 4 * stride + lane % 4;
  return {{__float_as_uint(at[0]), __float_as_uint(at[4])}};
}

__device__ inline Tf32B load_b(const float* from, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const float* const at = from + lane % 4 * stride + lane / 4;
  return {{__float_as_uint(at[0]), __float_as_uint(at[4 * stride])}};
}

}  // namespace muster::kernels::cuda
