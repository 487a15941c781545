// Products of matrices of r rows, where r is the number of columns of a sketch: Gram matrices and transforms.
#include "kernels/cuda/newton_schulz/mma_sm80.cuh"
#include "kernels/cuda/newton_schulz/spectral_cap_kernels.h"
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

// kColumns columns of kR rows on their way into shared memory, zeros where there are none. Loading into registers first
// lets a block compute meanwhile.
template <int kR, int kColumns>
struct Chunk {
  static constexpr int kAcross = kColumns / Vector8::kSize;
  static constexpr int kCount = kR * kAcross;
  static constexpr int kOwn = (kCount + kThreads - 1) / kThreads;

  uint4 v[kOwn];

  template <typename T>
  __device__ void load(const T* from, int64_t pitch, int column, int columns) {
    each([&](int row, int at, uint4& value) {
      const T* const place = from + row * pitch + column + at;
      const int count = columns - column - at;
      value = count >= Vector8::kSize ? *reinterpret_cast<const uint4*>(place) : first(place, count);
    });
  }
  // As halves, rows `stride` apart.
  __device__ void store(uint16_t* to, int stride) {
    each([&](int row, int at, uint4& value) { *reinterpret_cast<uint4*>(to + row * stride + at) = value; });
  }
  // As f32.
  template <typename T>
  __device__ void store_as_float(float* to, int stride) {
    each([&](int row, int at, uint4& value) {
      store_aligned(to + row * stride + at, load_aligned(reinterpret_cast<const T*>(&value)));
    });
  }

 private:
  template <typename F>
  __device__ void each(const F& f) {
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      const int i = static_cast<int>(threadIdx.x) + k * kThreads;
      if (i < kCount) f(i / kAcross, i % kAcross * Vector8::kSize, v[k]);
    }
  }
  template <typename T>
  __device__ static uint4 first(const T* from, int count) {
    alignas(16) T values[Vector8::kSize];
#pragma unroll
    for (int i = 0; i < Vector8::kSize; ++i) values[i] = i < count ? from[i] : from_float<T>(0.0F);
    return *reinterpret_cast<const uint4*>(values);
  }
};

// One part of the Gram matrix of one V: its blocks of 16 x 16 on and below the diagonal, as many per warp.
template <typename T, int kR, bool kRemainder>
__global__ void __launch_bounds__(kThreads) sum_gram_kernel(const Rows<T> v, float* sums) {
  constexpr int kChunk = 64;
  constexpr int kStride = kChunk + 8;
  constexpr int kSide = kR / 16;
  constexpr int kBlocks = kSide * (kSide + 1) / 2;
  constexpr int kOwn = (kBlocks + kWarps - 1) / kWarps;
  __shared__ alignas(16) uint16_t high[kR * kStride];
  __shared__ alignas(16) uint16_t low[kRemainder ? kR * kStride : 8];
  const int warp = static_cast<int>(threadIdx.x) / 32;
  int row[kOwn];
  int column[kOwn];
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    const int block = warp + k * kWarps;
    int i = 0;
    while ((i + 1) * (i + 2) / 2 <= block) ++i;
    row[k] = 16 * i;
    column[k] = 16 * (block - i * (i + 1) / 2);
  }
  MmaSums own[kOwn][2];
  const int64_t matrix = blockIdx.y * v.stride;
  const int begin = static_cast<int>(blockIdx.x * kGramPartColumns);
  const int end = min(begin + static_cast<int>(kGramPartColumns), v.columns);
  Chunk<kR, kChunk> next;
  Chunk<kR, kChunk> next_low;
  const auto load = [&](int at) {
    next.load(v.high + matrix, v.pitch, at, v.columns);
    if constexpr (kRemainder) next_low.load(v.low + matrix, v.pitch, at, v.columns);
  };
  load(begin);
  for (int at = begin; at < end; at += kChunk) {
    __syncthreads();
    next.store(high, kStride);
    if constexpr (kRemainder) next_low.store(low, kStride);
    __syncthreads();
    if (at + kChunk < end) load(at + kChunk);
#pragma unroll
    for (int k = 0; k < kOwn; ++k) {
      if (warp + k * kWarps >= kBlocks) break;
#pragma unroll
      for (int inner = 0; inner < kChunk; inner += 16) {
        const int a_at = row[k] * kStride + inner;
        const int b_at = column[k] * kStride + inner;
        const sm90::Fragments a = load_block(high + a_at, kStride);
        const sm90::Fragments b = load_block(high + b_at, kStride);
        if constexpr (kRemainder) {
          multiply_add_transposed<T>(own[k], load_block(low + a_at, kStride), b);
          multiply_add_transposed<T>(own[k], a, load_block(low + b_at, kStride));
        }
        multiply_add_transposed<T>(own[k], a, b);
      }
    }
  }
  float* const out = sums + (static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * kR * kR;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int k = 0; k < kOwn; ++k) {
    if (warp + k * kWarps >= kBlocks) break;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float* const tile = out + (row[k] + lane / 4) * kR + column[k] + 8 * half + lane % 4 * 2;
      const float(&s)[4] = own[k][half].v;
      *reinterpret_cast<float2*>(tile) = {s[0], s[1]};
      *reinterpret_cast<float2*>(tile + 8 * kR) = {s[2], s[3]};
    }
  }
}

// Adds up the parts of up to two Gram matrices per matrix, into the first part of each.
template <int kR>
__global__ void add_parts_kernel(const GramParts a, const GramParts b) {
  const int first = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (first % kR / 16 > first / kR / 16) return;  // above the diagonal
  const GramParts& own = blockIdx.z == 0 ? a : b;
  float* const at =
      own.sums + static_cast<int64_t>(blockIdx.y) * own.parts * kR * kR + blockIdx.x * kThreads + threadIdx.x;
  double sum = 0;
#pragma unroll 8
  for (int64_t p = 0; p < own.parts; ++p) sum += static_cast<double>(at[p * kR * kR]);
  *at = static_cast<float>(sum);
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

// Replaces the tile of V^T in shared memory by that of B V^T. B is the sum of two TF32 matrices; if `lower`, it is zero
// above the diagonal.
template <int kR, bool kRemainder>
__device__ void multiply_tile(const float* b, bool lower, float* high, const float* low) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  MmaSums sums[kR / 16];
  for (int inner = 0; inner < kR; inner += 8) {
    const Tf32B v = load_b(high + inner * kTileStride + 8 * warp, kTileStride);
#pragma unroll
    for (int i = 0; i < kR / 16; ++i) {
      if (lower && inner >= 16 * (i + 1)) continue;
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
    transform_kernel(const float* b, int64_t b_stride, bool lower, const Rows<T> v, const TransformTo<T> to) {
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
    constexpr int kLoads = kR * kR / 4 / kThreads;
    float4 loaded[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) loaded[k] = reinterpret_cast<const float4*>(from)[threadIdx.x + k * kThreads];
    const int64_t matrix = blockIdx.y * v.stride;
    Chunk<kR, kTile> chunk;
    chunk.load(v.high + matrix, v.pitch, begin, v.columns);
    Chunk<kR, kTile> chunk_low;
    if constexpr (kRemainder) chunk_low.load(v.low + matrix, v.pitch, begin, v.columns);
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int i = 4 * (static_cast<int>(threadIdx.x) + k * kThreads);
      *reinterpret_cast<float4*>(own_b + i / kR * (kR + 4) + i % kR) = loaded[k];
    }
    chunk.template store_as_float<T>(high, kTileStride);
    if constexpr (kRemainder) chunk_low.template store_as_float<T>(low, kTileStride);
    __syncthreads();
    multiply_tile<kR, kRemainder>(own_b, lower, high, low);
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
  kernel<<<grid, kThreads, kBytes, stream>>>(call.b, call.b_stride, call.lower, Rows<T>(call.v), to);
}

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
                 const dim3 grid = grid_of(gram_parts(v.rows.columns), batch);
                 with_half(type, [&]<typename T>(Type<T>) {
                   with_sketch(v.rows.rows, [&]<int kR>(Value<kR>) {
                     auto* const kernel =
                         v.remainder != nullptr ? sum_gram_kernel<T, kR, true> : sum_gram_kernel<T, kR, false>;
                     kernel<<<grid, kThreads, 0, stream>>>(Rows<T>(v), sums);
                   });
                 });
               });
}

void add_gram_parts(int64_t r, int64_t batch, const GramParts& a, const GramParts& b, LaunchQueue& queue) {
  queue.launch("sketch gram parts", {r, batch, address(a.sums), a.parts, address(b.sums), b.parts},
               [&](cudaStream_t stream) {
                 with_sketch(r, [&]<int kR>(Value<kR>) {
                   const dim3 grid(kR * kR / kThreads, static_cast<unsigned>(batch), b.sums != nullptr ? 2 : 1);
                   add_parts_kernel<kR><<<grid, kThreads, 0, stream>>>(a, b);
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
  queue.launch(
      "sketch transform",
      {static_cast<int64_t>(call.type), call.batch, v.rows, v.columns, v.stride, address(v.data),
       address(call.v.remainder), address(call.b), call.b_stride, address(call.rows.data), call.rows.stride,
       address(call.second_rows), address(call.columns), static_cast<int64_t>(call.second) * 2 + (call.lower ? 1 : 0)},
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
