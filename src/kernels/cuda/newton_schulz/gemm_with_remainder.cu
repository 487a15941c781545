#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <mma.h>

#include "kernels/cuda/newton_schulz/gemm_with_remainder.h"
#include "kernels/cuda/newton_schulz/vector8.cuh"

namespace muster::kernels::cuda {

namespace {

constexpr int kSide = 64;  // of a block's tile, and how deep a step is
constexpr int kThreads = 128;
constexpr int kChunk = 8;                      // elements of 16 bytes
constexpr int kHalfPitch = kSide + kChunk;     // of operands in shared memory: no two rows of eight share a bank
constexpr int kSumPitch = kSide + kChunk / 2;  // of sums
constexpr int kChunks = kSide * kSide / kChunk / kThreads;  // of an operand's box, per thread

struct Arguments {
  Matrices a;
  Matrices b;
  Matrices d;
  Matrices remainder;
  const Scalars* scalars;
  int64_t scalars_stride;
};

// The chunks of a box of 64 x 64 that a thread carries from global to shared memory.
template <typename T>
struct Box {
  uint4 chunks[kChunks];

  // Outside the matrix, elements are zero; padding may hold anything.
  __device__ void load(const Matrices& m, int64_t row, int64_t column) {
    const T* const matrix = static_cast<const T*>(m.data) + blockIdx.z * m.stride;
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      const int64_t r = row + row_of(i);
      const int64_t c = column + column_of(i);
      chunks[i] = uint4{0, 0, 0, 0};
      if (r >= m.rows || c >= m.columns) continue;
      chunks[i] = *reinterpret_cast<const uint4*>(matrix + r * m.pitch + c);
      if (c + kChunk <= m.columns) continue;
      uint32_t* const pairs = &chunks[i].x;
#pragma unroll
      for (int pair = 0; pair < kChunk / 2; ++pair) {
        if (c + 2 * pair >= m.columns) pairs[pair] = 0;
        if (c + 2 * pair + 1 == m.columns) pairs[pair] &= 0xffff;
      }
    }
  }
  __device__ void store(T* box) const {
#pragma unroll
    for (int i = 0; i < kChunks; ++i) {
      *reinterpret_cast<uint4*>(box + row_of(i) * kHalfPitch + column_of(i)) = chunks[i];
    }
  }

 private:
  static __device__ int row_of(int i) { return (static_cast<int>(threadIdx.x) + i * kThreads) / (kSide / kChunk); }
  static __device__ int column_of(int i) { return static_cast<int>(threadIdx.x) % (kSide / kChunk) * kChunk; }
};

// Stores a tile of sums, times alpha: as rounded to D, and what that lost to the remainder.
template <typename T>
__device__ void store_tile(const Arguments& p, const float* sums, int64_t row, int64_t column) {
  const float alpha = p.scalars[blockIdx.z * p.scalars_stride].alpha;
  T* const d = static_cast<T*>(p.d.data) + blockIdx.z * p.d.stride;
  T* const remainder = static_cast<T*>(p.remainder.data) + blockIdx.z * p.remainder.stride;
  for (int i = static_cast<int>(threadIdx.x); i < kSide * kSide; i += kThreads) {
    const int64_t r = row + i / kSide;
    const int64_t c = column + i % kSide;
    if (r >= p.d.rows || c >= p.d.columns) continue;
    const float value = alpha * sums[i / kSide * kSumPitch + i % kSide];
    const T rounded = from_float<T>(value);
    d[r * p.d.pitch + c] = rounded;
    remainder[r * p.remainder.pitch + c] = from_float<T>(value - to_float(rounded));
  }
}

// A block computes 64 x 64 elements of D, and each of its warps 32 x 32 of them, always in the same order.
template <typename T, bool kBTransposed>
__global__ void __launch_bounds__(kThreads) gemm_with_remainder(const Arguments p) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
  using namespace nvcuda;
  using LayoutB = std::conditional_t<kBTransposed, wmma::col_major, wmma::row_major>;
  constexpr int kBoxSize = kSide * kHalfPitch;
  static_assert(kSide * kSumPitch * sizeof(float) <= 2 * kBoxSize * sizeof(T));
  __shared__ __align__(128) T boxes[2 * kBoxSize];
  T* const a_box = boxes;
  T* const b_box = boxes + kBoxSize;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kSide;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kSide;
  const int warp_row = static_cast<int>(threadIdx.x) / 64 * 32;
  const int warp_column = static_cast<int>(threadIdx.x) / 32 % 2 * 32;

  wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[2][2];
  for (auto& line : sums) {
    for (auto& sum : line) wmma::fill_fragment(sum, 0.0F);
  }
  Box<T> a;
  Box<T> b;
  const auto load = [&](int64_t k) {
    a.load(p.a, row, k);
    kBTransposed ? b.load(p.b, column, k) : b.load(p.b, k, column);
  };
  load(0);
  for (int64_t k = 0; k < p.a.columns; k += kSide) {
    __syncthreads();  // all warps have multiplied the last boxes
    a.store(a_box);
    b.store(b_box);
    __syncthreads();
    load(k + kSide);  // while these are multiplied; zeros after the last
#pragma unroll
    for (int step = 0; step < kSide; step += 16) {
      wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> a_part[2];
      wmma::fragment<wmma::matrix_b, 16, 16, 16, T, LayoutB> b_part[2];
      for (int i = 0; i < 2; ++i) {
        const int across = warp_column + 16 * i;
        wmma::load_matrix_sync(a_part[i], a_box + (warp_row + 16 * i) * kHalfPitch + step, kHalfPitch);
        wmma::load_matrix_sync(
            b_part[i], b_box + (kBTransposed ? across * kHalfPitch + step : step * kHalfPitch + across), kHalfPitch);
      }
      for (int i = 0; i < 2; ++i) {
        for (int j = 0; j < 2; ++j) wmma::mma_sync(sums[i][j], a_part[i], b_part[j], sums[i][j]);
      }
    }
  }

  __syncthreads();
  float* const tile = reinterpret_cast<float*>(boxes);
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 2; ++j) {
      wmma::store_matrix_sync(tile + (warp_row + 16 * i) * kSumPitch + warp_column + 16 * j, sums[i][j], kSumPitch,
                              wmma::mem_row_major);
    }
  }
  __syncthreads();
  store_tile<T>(p, tile, row, column);
#else
  __trap();  // no tensor cores for bf16
#endif
}

}  // namespace

void multiply_with_remainder(const Gemm& gemm, cudaStream_t stream) {
  const Arguments arguments{.a = gemm.a,
                            .b = gemm.b,
                            .d = gemm.d,
                            .remainder = gemm.d_remainder,
                            .scalars = gemm.scalars,
                            .scalars_stride = gemm.scalars_stride};
  const auto tiles = [](int64_t size) { return static_cast<unsigned>((size + kSide - 1) / kSide); };
  const dim3 grid(tiles(gemm.d.columns), tiles(gemm.d.rows), static_cast<unsigned>(gemm.batch));
  with_half(gemm.type, [&]<typename T>(Type<T>) {
    if (gemm.b_transposed) {
      gemm_with_remainder<T, true><<<grid, kThreads, 0, stream>>>(arguments);
    } else {
      gemm_with_remainder<T, false><<<grid, kThreads, 0, stream>>>(arguments);
    }
  });
}

}  // namespace muster::kernels::cuda
