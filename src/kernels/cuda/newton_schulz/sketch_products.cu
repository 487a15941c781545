// Products of matrices of r rows, where r is the number of columns of a sketch: Gram matrices and transforms.
#include "kernels/cuda/newton_schulz/spectral_cap_kernels.h"
#include "kernels/cuda/newton_schulz/tf32_mma.cuh"
#include "kernels/cuda/newton_schulz/vector8.cuh"
#include "kernels/cuda/newton_schulz/with_sketch.cuh"
#include "kernels/cuda/runtime/cuda_check.h"

namespace muster::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

template <typename T>
__global__ void write_signs_kernel(T* signs, int rows, int columns, int64_t pitch) {
  const int column = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (column >= columns) return;
  for (int word = 0; word < rows / 32; ++word) {
    const uint32_t bits = sketch_signs(static_cast<uint32_t>(column), static_cast<uint32_t>(word));
    for (int i = 0; i < 32; ++i) signs[(word * 32 + i) * pitch + column] = from_float<T>(bits >> i & 1 ? -1.0F : 1.0F);
  }
}

// V^T and its remainder on the device.
template <typename T>
struct Rows {
  const T* high;
  const T* low;
  int columns;
  int64_t pitch;
  int64_t stride;

  explicit Rows(const SketchRows& v)
      : high(static_cast<const T*>(v.rows.data)),
        low(static_cast<const T*>(v.remainder)),
        columns(static_cast<int>(v.rows.columns)),
        pitch(v.rows.pitch),
        stride(v.rows.stride) {}
};

// kColumns columns of kR rows on their way into shared memory; zeros where there are none. Loading into registers first
// lets a block compute meanwhile.
template <int kR, int kColumns, int kStride>
struct Chunk {
  static constexpr int kAcross = kColumns / Vector8::kSize;
  static constexpr int kCount = kR * kAcross;
  static constexpr int kOwn = (kCount + kThreads - 1) / kThreads;

  Vector8 v[kOwn];

  template <typename T>
  __device__ void load(const T* from, int64_t pitch, int column, int columns) {
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const int i = static_cast<int>(threadIdx.x) + k * kThreads;
      const int at = column + i % kAcross * Vector8::kSize;
      if (i < kCount) v[k] = load_vector8(from + i / kAcross * pitch + at, columns - at);
    }
  }
  __device__ void store(float* to) const {
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const int i = static_cast<int>(threadIdx.x) + k * kThreads;
      if (i < kCount) store_aligned(to + i / kAcross * kStride + i % kAcross * Vector8::kSize, v[k]);
    }
  }
};

// One part of the Gram matrix of one V: its tiles of 16 x 8 that touch the lower triangle.
template <typename T, int kR, bool kRemainder>
__global__ void __launch_bounds__(kThreads) sum_gram_kernel(const Rows<T> v, float* sums) {
  constexpr int kChunk = 32;
  constexpr int kStride = kChunk + 4;
  constexpr int kTiles = kR / 16 * (kR / 16 + 1);
  constexpr int kOwn = (kTiles + kWarps - 1) / kWarps;
  __shared__ alignas(16) float high[kR * kStride];
  __shared__ alignas(16) float low[kRemainder ? kR * kStride : 4];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int row[kOwn];
  int column[kOwn];
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    const int tile = warp + k * kWarps;
    int i = 0;
    while ((i + 1) * (i + 2) <= tile) ++i;
    row[k] = 16 * i;
    column[k] = 8 * (tile - i * (i + 1));
  }
  Tf32Sums own[kOwn];
  const int64_t matrix = blockIdx.y * v.stride;
  const int begin = static_cast<int>(blockIdx.x * kGramSumColumns);
  const int end = min(begin + static_cast<int>(kGramSumColumns), v.columns);
  Chunk<kR, kChunk, kStride> next;
  Chunk<kR, kChunk, kStride> next_low;
  const auto load = [&](int at) {
    next.load(v.high + matrix, v.pitch, at, v.columns);
    if constexpr (kRemainder) next_low.load(v.low + matrix, v.pitch, at, v.columns);
  };
  load(begin);
  for (int at = begin; at < end; at += kChunk) {
    __syncthreads();
    next.store(high);
    if constexpr (kRemainder) next_low.store(low);
    __syncthreads();
    if (at + kChunk < end) load(at + kChunk);
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      if (warp + k * kWarps >= kTiles) break;
#pragma unroll
      for (int inner = 0; inner < kChunk; inner += 8) {
        float values[4];
        load_a(high + row[k] * kStride + inner, kStride, values);
        const Tf32A a = exact_a(values);
        const Tf32B b = load_b_transposed(high + column[k] * kStride + inner, kStride);
        if constexpr (kRemainder) {
          float small[4];
          load_a(low + row[k] * kStride + inner, kStride, small);
          multiply_add(own[k], exact_a(small), b);
          multiply_add(own[k], a, load_b_transposed(low + column[k] * kStride + inner, kStride));
        }
        multiply_add(own[k], a, b);
      }
    }
  }
  float* const out = sums + (static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * kR * kR;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    if (warp + k * kWarps >= kTiles) break;
    float* const tile = out + (row[k] + lane / 4) * kR + column[k] + lane % 4 * 2;
    tile[0] = own[k].v[0];
    tile[1] = own[k].v[1];
    tile[8 * kR] = own[k].v[2];
    tile[8 * kR + 1] = own[k].v[3];
  }
}

// What a transform writes.
template <typename T>
struct TransformTo {
  T* rows;
  T* second_rows;
  T* columns;
  int64_t pitch;
  int64_t stride;
  bool remainder;

  __device__ float second_of(float value) const {
    const float rounded = to_float(from_float<T>(value));
    return remainder ? value - rounded : rounded;
  }
};

constexpr int kTile = 64;  // columns of V^T per thread block
constexpr int kTileStride = kTile + 8;

template <int kR, bool kRemainder>
constexpr int kTransformBytes = 4 * (kR * (kR + 4) + (kRemainder ? 2 : 1) * kR * kTileStride);

// The tile of B V^T in shared memory. B is the sum of two TF32 matrices.
template <int kR, bool kRemainder>
__device__ void multiply_tile(const float* b, float* high, const float* low) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  Tf32Sums sums[kR / 16];
  for (int inner = 0; inner < kR; inner += 8) {
    const Tf32B v = load_b(high + inner * kTileStride + 8 * warp, kTileStride);
#pragma unroll
    for (int i = 0; i < kR / 16; ++i) {
      float values[4];
      load_a(b + 16 * i * (kR + 4) + inner, kR + 4, values);
      Tf32A large;
      Tf32A small;
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        large.v[k] = to_tf32(values[k]);
        small.v[k] = to_tf32(values[k] - __uint_as_float(large.v[k]));
      }
      multiply_add(sums[i], small, v);
      if constexpr (kRemainder) {
        multiply_add(sums[i], large, load_b(low + inner * kTileStride + 8 * warp, kTileStride));
      }
      multiply_add(sums[i], large, v);
    }
  }
  __syncthreads();  // all warps have read V^T
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < kR / 16; ++i) {
    float* const at = high + (16 * i + lane / 4) * kTileStride + 8 * warp + lane % 4 * 2;
    at[0] = sums[i].v[0];
    at[1] = sums[i].v[1];
    at[8 * kTileStride] = sums[i].v[2];
    at[8 * kTileStride + 1] = sums[i].v[3];
  }
}

// Stores a tile of the result, kR x kTile in shared memory.
template <int kR, typename T>
__device__ void store_tile(const float* tile, int begin, int columns, const TransformTo<T>& to) {
  const int64_t matrix = blockIdx.y * to.stride;
  constexpr int kAcross = kTile / Vector8::kSize;
  for (int i = static_cast<int>(threadIdx.x); i < kR * kAcross && to.rows != nullptr; i += kThreads) {
    const int row = i / kAcross;
    const int at = i % kAcross * Vector8::kSize;
    if (begin + at >= columns) continue;  // the rest of a row is padding up to a whole vector
    const Vector8 values = load_aligned(tile + row * kTileStride + at);
    Vector8 second;
#pragma unroll
    for (int k = 0; k < Vector8::kSize; ++k) second.v[k] = to.second_of(values.v[k]);
    const int64_t place = matrix + row * to.pitch + begin + at;
    store_aligned(to.rows + place, values);
    if (to.second_rows != nullptr) store_aligned(to.second_rows + place, second);
  }
  if (to.columns == nullptr) return;
  constexpr int kDown = 2 * kR / Vector8::kSize;
  T* const out = to.columns + static_cast<int64_t>(blockIdx.y) * columns * 2 * kR;
  // Two threads store 32 bytes of a column; consecutive pairs read consecutive columns of the tile.
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kDown; i += kThreads) {
    const int column = i / 2 % kTile;
    const int at = (i / (2 * kTile) * 2 + i % 2) * Vector8::kSize;
    if (begin + column >= columns) continue;
    Vector8 values;
#pragma unroll
    for (int k = 0; k < Vector8::kSize; ++k) {
      const float value = tile[(at + k) % kR * kTileStride + column];
      values.v[k] = at < kR ? value : to.second_of(value);
    }
    store_aligned(out + static_cast<int64_t>(begin + column) * 2 * kR + at, values);
  }
}

template <typename T, int kR, bool kRemainder>
__global__ void __launch_bounds__(kThreads)
    transform_kernel(const float* b, int64_t b_stride, const Rows<T> v, const TransformTo<T> to) {
  extern __shared__ float shared[];
  float* const own_b = shared;
  float* const high = own_b + kR * (kR + 4);
  float* const low = high + kR * kTileStride;
  const int begin = static_cast<int>(blockIdx.x) * kTile;
  if (v.high == nullptr) {
    for (int i = static_cast<int>(threadIdx.x); i < kR * kTile; i += kThreads) {
      high[i / kTile * kTileStride + i % kTile] = i / kTile == begin + i % kTile ? kBasisScale : 0.0F;
    }
  } else {
    const float* const from = b + blockIdx.y * b_stride;
    for (int i = 4 * static_cast<int>(threadIdx.x); i < kR * kR; i += 4 * kThreads) {
      *reinterpret_cast<float4*>(own_b + i / kR * (kR + 4) + i % kR) = *reinterpret_cast<const float4*>(from + i);
    }
    const int64_t matrix = blockIdx.y * v.stride;
    Chunk<kR, kTile, kTileStride> chunk;
    chunk.load(v.high + matrix, v.pitch, begin, v.columns);
    chunk.store(high);
    if constexpr (kRemainder) {
      chunk.load(v.low + matrix, v.pitch, begin, v.columns);
      chunk.store(low);
    }
    __syncthreads();
    multiply_tile<kR, kRemainder>(own_b, high, low);
  }
  __syncthreads();
  store_tile<kR>(high, begin, v.columns, to);
}

template <typename T, int kR, bool kRemainder>
void launch_transform(const Transform& call, const dim3& grid, cudaStream_t stream) {
  constexpr int kBytes = kTransformBytes<kR, kRemainder>;
  auto* const kernel = transform_kernel<T, kR, kRemainder>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), "transform");
  const TransformTo<T> to{static_cast<T*>(call.rows.data),
                          static_cast<T*>(call.second_rows),
                          static_cast<T*>(call.columns),
                          call.rows.pitch,
                          call.rows.stride,
                          call.second == Transform::Second::kRemainder};
  kernel<<<grid, kThreads, kBytes, stream>>>(call.b, call.b_stride, Rows<T>(call.v), to);
}

dim3 grid_of(int64_t across, int64_t batch) { return {static_cast<unsigned>(across), static_cast<unsigned>(batch)}; }

}  // namespace

void write_signs(Half type, const Matrices& signs, LaunchQueue& queue) {
  queue.launch(
      "signs", {static_cast<int64_t>(type), signs.rows, signs.columns, address(signs.data)}, [&](cudaStream_t stream) {
        with_half(type, [&]<typename T>(Type<T>) {
          const dim3 grid = grid_of((signs.columns + kThreads - 1) / kThreads, 1);
          write_signs_kernel<<<grid, kThreads, 0, stream>>>(static_cast<T*>(signs.data), static_cast<int>(signs.rows),
                                                            static_cast<int>(signs.columns), signs.pitch);
        });
      });
}

void sum_gram(Half type, const SketchRows& v, int64_t batch, float* sums, LaunchQueue& queue) {
  queue.launch("sketch gram",
               {static_cast<int64_t>(type), batch, v.rows.rows, v.rows.columns, v.rows.stride, address(v.rows.data),
                address(v.remainder), address(sums)},
               [&](cudaStream_t stream) {
                 const dim3 grid = grid_of(gram_sums(v.rows.columns), batch);
                 with_half(type, [&]<typename T>(Type<T>) {
                   with_sketch(v.rows.rows, [&]<int kR>(Value<kR>) {
                     auto* const kernel =
                         v.remainder != nullptr ? sum_gram_kernel<T, kR, true> : sum_gram_kernel<T, kR, false>;
                     kernel<<<grid, kThreads, 0, stream>>>(Rows<T>(v), sums);
                   });
                 });
               });
}

void transform(const Transform& call, LaunchQueue& queue) {
  // Of an identity, the rows that are written tell the size.
  Transform whole = call;
  if (call.v.rows.data == nullptr) {
    whole.v.rows = call.rows;
    whole.v.rows.data = nullptr;
  }
  const Matrices& v = whole.v.rows;
  queue.launch("sketch transform",
               {static_cast<int64_t>(call.type), call.batch, v.rows, v.columns, v.stride, address(v.data),
                address(call.v.remainder), address(call.b), call.b_stride, address(call.rows.data), call.rows.stride,
                address(call.second_rows), address(call.columns), static_cast<int64_t>(call.second)},
               [&](cudaStream_t stream) {
                 const dim3 grid = grid_of((v.columns + kTile - 1) / kTile, call.batch);
                 with_half(call.type, [&]<typename T>(Type<T>) {
                   with_sketch(v.rows, [&]<int kR>(Value<kR>) {
                     call.v.remainder != nullptr ? launch_transform<T, kR, true>(whole, grid, stream)
                                                 : launch_transform<T, kR, false>(whole, grid, stream);
                   });
                 });
               });
}

}  // namespace muster::kernels::cuda
