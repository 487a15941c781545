// Eight consecutive elements at a time, in 16-byte accesses where they are aligned. What a thread computes must not
// depend on that: an octet has the same elements wherever its matrix is.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <type_traits>

namespace muster::kernels::cuda {

constexpr int kOctet = 8;

struct Octet {
  float v[kOctet];
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

__device__ inline bool on_16_bytes(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

template <typename T>
__device__ Octet load_aligned(const T* from) {
  constexpr int kWords = kOctet * sizeof(T) / 16;
  alignas(16) T values[kOctet];
  Octet octet;
#pragma unroll
  for (int w = 0; w < kWords; ++w) reinterpret_cast<uint4*>(values)[w] = reinterpret_cast<const uint4*>(from)[w];
#pragma unroll
  for (int i = 0; i < kOctet; ++i) octet.v[i] = to_float(values[i]);
  return octet;
}

template <typename T>
__device__ void store_aligned(T* to, const Octet& octet) {
  constexpr int kWords = kOctet * sizeof(T) / 16;
  alignas(16) T values[kOctet];
#pragma unroll
  for (int i = 0; i < kOctet; ++i) values[i] = from_float<T>(octet.v[i]);
#pragma unroll
  for (int w = 0; w < kWords; ++w) reinterpret_cast<uint4*>(to)[w] = reinterpret_cast<const uint4*>(values)[w];
}

// The first `count` elements; zeros for the others.
template <typename T>
__device__ Octet load_octet(const T* from, int64_t count) {
  if (count >= kOctet && on_16_bytes(from)) return load_aligned(from);
  Octet octet;
#pragma unroll
  for (int i = 0; i < kOctet; ++i) octet.v[i] = i < count ? to_float(from[i]) : 0.0F;
  return octet;
}

template <typename T>
__device__ void store_octet(T* to, const Octet& octet, int64_t count) {
  if (count >= kOctet && on_16_bytes(to)) return store_aligned(to, octet);
#pragma unroll
  for (int i = 0; i < kOctet; ++i) {
    if (i < count) to[i] = from_float<T>(octet.v[i]);
  }
}

// The sum over a block of kThreads, for all of them, in an order that kThreads alone decides.
template <int kThreads, typename V>
__device__ V block_sum(V v) {
  __shared__ V partial[kThreads / 32];
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_down_sync(0xffffffff, v, offset);
  __syncthreads();  // a sum before this one has been read
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  V sum = 0;
  for (int w = 0; w < kThreads / 32; ++w) sum += partial[w];
  return sum;
}

}  // namespace muster::kernels::cuda
