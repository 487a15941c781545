// Eight consecutive elements at a time, in 16-byte accesses if they are aligned. A thread computes the same bits either
// way: which elements make a vector does not depend on where the matrix is.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

#include "kernels/cuda/gemm_sm90/gemm.h"
#include "kernels/weight_form_dispatch.h"

namespace muster::kernels::cuda {

struct Vector8 {
  static constexpr int kSize = 8;

  float v[kSize];
};

__device__ inline float to_float(float v) { return v; }
__device__ inline float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline float to_float(__half v) { return __half2float(v); }

template <typename T>
__device__ T from_float(float v) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {
    return __float2bfloat16(v);
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half(v);
  } else {
    return v;
  }
}

__device__ inline bool aligned_to_16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

template <typename T>
__device__ Vector8 load_aligned(const T* from) {
  constexpr int kWords = Vector8::kSize * sizeof(T) / 16;
  alignas(16) T values[Vector8::kSize];
  Vector8 vector;
#pragma unroll
  for (int w = 0; w < kWords; ++w) reinterpret_cast<uint4*>(values)[w] = reinterpret_cast<const uint4*>(from)[w];
#pragma unroll
  for (int i = 0; i < Vector8::kSize; ++i) vector.v[i] = to_float(values[i]);
  return vector;
}

template <typename T>
__device__ void store_aligned(T* to, const Vector8& vector) {
  constexpr int kWords = Vector8::kSize * sizeof(T) / 16;
  alignas(16) T values[Vector8::kSize];
#pragma unroll
  for (int i = 0; i < Vector8::kSize; ++i) values[i] = from_float<T>(vector.v[i]);
#pragma unroll
  for (int w = 0; w < kWords; ++w) reinterpret_cast<uint4*>(to)[w] = reinterpret_cast<const uint4*>(values)[w];
}

// The first `count` elements, then zeros.
template <typename T>
__device__ Vector8 load_vector8(const T* from, int64_t count) {
  if (count >= Vector8::kSize && aligned_to_16(from)) return load_aligned(from);
  Vector8 vector;
#pragma unroll
  for (int i = 0; i < Vector8::kSize; ++i) vector.v[i] = i < count ? to_float(from[i]) : 0.0F;
  return vector;
}

template <typename T>
__device__ void store_vector8(T* to, const Vector8& vector, int64_t count) {
  if (count >= Vector8::kSize && aligned_to_16(to)) return store_aligned(to, vector);
#pragma unroll
  for (int i = 0; i < Vector8::kSize; ++i) {
    if (i < count) to[i] = from_float<T>(vector.v[i]);
  }
}

// The sum over a thread block of kThreads threads, returned to all of them. Only kThreads decides its order.
template <int kThreads, typename V>
__device__ V block_sum(V v) {
  __shared__ V partial[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_down_sync(0xffffffff, v, offset);
  __syncthreads();  // all threads have read an earlier sum
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  V sum = 0;
  for (int w = 0; w < kThreads / 32; ++w) sum += partial[w];
  return sum;
}

// Calls f with the half type as Type<T>.
template <typename F>
void with_half(Half type, const F& f) {
  type == Half::kF16 ? f(Type<__half>{}) : f(Type<__nv_bfloat16>{});
}

// Calls f with the wire dtype as Type<T>.
template <typename F>
void with_wire(Dtype wire, const F& f) {
  wire == Dtype::kF32 ? f(Type<float>{}) : f(Type<__nv_bfloat16>{});
}

}  // namespace muster::kernels::cuda
