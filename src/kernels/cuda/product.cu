#include <algorithm>
#include <array>
#include <string>

#include "kernels/cuda/check.h"
#include "kernels/cuda/cuda_cublas.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/sm90.cuh"

namespace muster::kernels::cuda {

namespace {

constexpr int kTile = 128;  // columns of a tile, and rows of a warpgroup's part of one
constexpr int kDepth = 64;
constexpr int kHalfBytes = 2;
constexpr int kBoxBytes = 64 * 64 * kHalfBytes;  // what the copy engine moves at once: 64 rows of 128 bytes
constexpr int kStagingBytes = 2 * kBoxBytes;     // of a warpgroup: half its part, 64 x 128, on its way out
constexpr int kThreads = 3 * 128;

// A block has two warpgroups that multiply, and a warp that feeds them from a ring of stages, each 64 deep.
// In turns: each has a 128 x 128 tile; while one multiplies, the other writes out what it had. Together: both work on
// one 256 x 128 tile, for which less is loaded.
enum class Work : uint8_t { kInTurns, kTogether };

template <Work kWork>
struct Ring {
  static constexpr bool kTogether = kWork == Work::kTogether;
  static constexpr int kRows = kTogether ? 2 * kTile : kTile;
  static constexpr int kStages = kTogether ? 4 : 6;
  static constexpr int kABytes = kRows * kDepth * kHalfBytes;
  static constexpr int kBytes = kABytes + kTile * kDepth * kHalfBytes;  // of a stage
  static constexpr int kBarrierBytes = 8 * (2 * kStages + 2);
  static constexpr int kSharedBytes = kStages * kBytes + 2 * kStagingBytes + kBarrierBytes;
};

struct Shape {
  int inner;
  int rows;
  int columns;
  int batch;
  int tiles_across;  // tiles in a row
  int tiles;         // a matrix
  int64_t c_pitch;
  int64_t c_stride;
  int64_t scalars_stride;
};

struct Tile {
  int matrix;
  int row;  // of its first element
  int column;
};

template <bool kSymmetric, int kRows>
__device__ Tile tile_at(int number, const Shape& shape) {
  int rest = number % shape.tiles;
  int row = 0;
  int column = 0;
  if constexpr (kSymmetric) {
    // A row of tiles has those up to the diagonal.
    for (int width = kRows / kTile; rest >= width; width = min(width + kRows / kTile, shape.tiles_across)) {
      rest -= width;
      ++row;
    }
    column = rest;
  } else {
    row = rest / shape.tiles_across;
    column = rest % shape.tiles_across;
  }
  return {number / shape.tiles, row * kRows, column * kTile};
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
#define MUSTER_SM90 1
#endif

template <typename T, Work kWork, bool kSymmetric, bool kAcrossA, bool kAcrossB, bool kBeta>
__global__ void __launch_bounds__(kThreads, 1)
    product_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                   const __grid_constant__ CUtensorMap d_map, const __grid_constant__ CUtensorMap d_strip_map,
                   const T* __restrict__ c, const Scalars* __restrict__ scalars, const Shape shape) {
#ifdef MUSTER_SM90
  using namespace sm90;
  using Stages = Ring<kWork>;
  constexpr bool kTogether = Stages::kTogether;
  constexpr int kStages = Stages::kStages;
  constexpr int kStageBytes = Stages::kBytes;
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t base = shared_address(memory);
  const uint32_t staging = base + kStages * kStageBytes;
  const uint32_t barriers = staging + 2 * kStagingBytes;
  const auto full = [&](int stage) { return barriers + 8 * stage; };
  const auto empty = [&](int stage) { return barriers + 8 * (kStages + stage); };
  const auto turn = [&](int warpgroup) { return barriers + 8 * (2 * kStages + warpgroup); };
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      barrier_init(full(s), 1);
      barrier_init(empty(s), kTogether ? 2 : 1);
    }
    barrier_init(turn(0), 1);
    barrier_init(turn(1), 1);
    barrier_init_fence();
  }
  __syncthreads();

  const int total = shape.tiles * shape.batch;
  const int steps = (shape.inner + kDepth - 1) / kDepth;
  const int first_tile = static_cast<int>(blockIdx.x);
  const int grid = static_cast<int>(gridDim.x);
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x != 0) return;
    int stage = 0;
    uint32_t parity = 1;
    for (int t = first_tile; t < total; t += grid) {
      const Tile tile = tile_at<kSymmetric, Stages::kRows>(t, shape);
      for (int s = 0; s < steps; ++s) {
        barrier_wait(empty(stage), parity);
        barrier_expect(full(stage), kStageBytes);
        const uint32_t a = base + stage * kStageBytes;
        const uint32_t b = a + Stages::kABytes;
        if constexpr (kAcrossA) {
          for (int x = 0; x < Stages::kRows / 64; ++x) {
            load_box(a + x * kBoxBytes, a_map, full(stage), tile.row + x * 64, s * kDepth, tile.matrix);
          }
        } else {
          load_box(a, a_map, full(stage), s * kDepth, tile.row, tile.matrix);
        }
        if constexpr (kAcrossB) {
          load_box(b, b_map, full(stage), tile.column, s * kDepth, tile.matrix);
          load_box(b + kBoxBytes, b_map, full(stage), tile.column + 64, s * kDepth, tile.matrix);
        } else {
          load_box(b, b_map, full(stage), s * kDepth, tile.column, tile.matrix);
        }
        if (++stage == kStages) {
          stage = 0;
          parity ^= 1;
        }
      }
    }
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  const int group = static_cast<int>(threadIdx.x) / 128 - 1;
  const int warp = static_cast<int>(threadIdx.x) % 128 / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool elected = threadIdx.x % 128 == 0;
  const uint32_t part = staging + group * kStagingBytes;
  // Where element (row, 8 octet) of half a tile is staged: as the copy engine swizzles it.
  const auto staged = [&](int row, int octet) {
    return part + octet / 8 * kBoxBytes + row * 128 + (octet % 8 ^ (row & 7)) * 16;
  };

  int number = kTogether ? 0 : group;  // of this block's tiles
  const int skip = kTogether ? 1 : 2;
  for (int t = first_tile + number * grid; t < total; t += skip * grid, number += skip) {
    Tile tile = tile_at<kSymmetric, Stages::kRows>(t, shape);
    if (kTogether) tile.row += group * kTile;  // this group's part
    const auto [alpha, beta] = load_pair(scalars + tile.matrix * shape.scalars_stride);
    // A warp has 16 rows of each half of the tile; 16 lanes with 16 bytes each are a row of C.
    const auto load_c = [&](uint4(&v)[8], int half) {
#pragma unroll
      for (int r = 0; r < 8; ++r) {
        const int row = tile.row + half * 64 + warp * 16 + 2 * r + lane / 16;
        const int column = tile.column + lane % 16 * 8;
        const bool inside = row < shape.rows && column < shape.columns;
        v[r] =
            inside ? load_global(c + tile.matrix * shape.c_stride + row * shape.c_pitch + column) : uint4{0, 0, 0, 0};
      }
    };
    uint4 c_rows[8];
    float sums[2][64];

    // The other group has waited for all its stages: those that follow are this group's.
    if (!kTogether) barrier_wait(turn(group), (number / 2 + 1 + group) & 1);
    const int64_t before = static_cast<int64_t>(number) * steps;
    int stage = static_cast<int>(before % kStages);
    uint32_t parity = static_cast<uint32_t>(before / kStages & 1);
    for (int s = 0; s < steps; ++s) {
      barrier_wait(full(stage), parity);
      if (!kTogether && s + 1 == steps && elected) barrier_arrive(turn(1 - group));
      const uint32_t stage_base = base + stage * kStageBytes;
      const uint32_t a = stage_base + (kTogether ? group * 2 * kBoxBytes : 0);
      const uint32_t b = stage_base + Stages::kABytes;
      multiply_fence();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k) {
        const uint64_t b_tile = kAcrossB ? tile_across(b + k * 2048) : tile_along(b + k * 32);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t a_half = a + half * kBoxBytes;
          const uint64_t a_tile = kAcrossA ? tile_across(a_half + k * 2048) : tile_along(a_half + k * 32);
          multiply_add<T, kAcrossA, kAcrossB>(sums[half], a_tile, b_tile, s == 0 && k == 0);
        }
      }
      multiply_commit();
      if (kBeta && s + 1 == steps) load_c(c_rows, 0);
      if (s > 0) {
        multiply_wait<1>();
        if (elected) barrier_arrive(empty((stage + kStages - 1) % kStages));
      }
      if (++stage == kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
    multiply_wait<0>();
    if (elected) barrier_arrive(empty((stage + kStages - 1) % kStages));

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile.row + half * 64;
      if (kSymmetric && tile.column > row + 63) continue;  // above the diagonal
      if (lane == 0) stores_read();
      if (kSymmetric) {
        warpgroup_sync(1 + group);
      } else {
        __syncwarp();
      }
      if (kBeta) {
#pragma unroll
        for (int r = 0; r < 8; ++r) store_shared(staged(warp * 16 + 2 * r + lane / 16, lane % 16), c_rows[r]);
        __syncwarp();
        if (half == 0) load_c(c_rows, 1);
      }
      const auto quad = [&](int q) {
        const float* const v = &sums[half][q * 4];
        return Quad{{pack<T>(v[0], v[1]), pack<T>(v[2], v[3]), pack<T>(v[4], v[5]), pack<T>(v[6], v[7])}};
      };
#pragma unroll
      for (int q = 0; q < 16; q += 2) {
        const uint32_t at = staged(warp * 16 + lane % 16, q + lane / 16);
        float* const v = &sums[half][q * 4];
        if (kBeta) {
          const Quad old = load_quad(at);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 pair = unpack<T>(old.v[i]);
            v[2 * i] = alpha * v[2 * i] + beta * pair.x;
            v[2 * i + 1] = alpha * v[2 * i + 1] + beta * pair.y;
          }
        } else {
#pragma unroll
          for (int i = 0; i < 8; ++i) v[i] *= alpha;
        }
        store_quad(at, quad(q));
      }
      publish();
      __syncwarp();
      if (lane == 0) {
        const uint32_t strip = part + warp * 16 * 128;
        store_box(d_strip_map, strip, tile.column, row + warp * 16, tile.matrix);
        store_box(d_strip_map, strip + kBoxBytes, tile.column + 64, row + warp * 16, tile.matrix);
        store_commit();
      }
      if (kSymmetric && row >= tile.column + kTile) {
        // The mirror image: the warpgroup's 64 x 128 transposed, rows of 128 bytes.
        if (lane == 0) stores_read();
        warpgroup_sync(1 + group);
#pragma unroll
        for (int q = 0; q < 16; q += 2) {
          const int column = (q + lane / 16) * 8 + lane % 8;
          const int octet = warp * 2 + lane / 8 % 2;
          store_quad_transposed(part + column * 128 + (octet ^ (column & 7)) * 16, quad(q));
        }
        publish();
        warpgroup_sync(1 + group);
        if (elected) {
          store_box(d_map, part, row, tile.column, tile.matrix);
          store_box(d_map, part + kBoxBytes, row, tile.column + 64, tile.matrix);
          store_commit();
        }
      }
    }
  }
  if (lane == 0) stores_done();
#endif
}

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                 const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                 CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// From the driver, which a program must be able to do without.
EncodeTiled encode_tiled() {
  static const EncodeTiled function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found),
          "cuTensorMapEncodeTiled");
    if (found != cudaDriverEntryPointSuccess) throw DeviceError("cuTensorMapEncodeTiled: the driver does not have it");
    return reinterpret_cast<EncodeTiled>(entry);
  }();
  return function;
}

// Boxes of `box_rows` rows of 64 elements. What is outside the matrix reads as zero and is not written.
CUtensorMap boxes_of(const Matrices& m, Half type, int64_t batch, uint32_t box_rows) {
  CUtensorMap map;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(m.columns), static_cast<cuuint64_t>(m.rows),
                               static_cast<cuuint64_t>(batch)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(m.pitch * kHalfBytes),
                                 static_cast<cuuint64_t>(m.stride * kHalfBytes)};
  const cuuint32_t box[3] = {64, box_rows, 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  const auto dtype = type == Half::kF16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  const CUresult result =
      encode_tiled()(&map, dtype, 3, m.data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                     CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw InvalidArgument("product: " + std::to_string(m.rows) + "x" + std::to_string(m.columns) + ", pitch " +
                          std::to_string(m.pitch) + ": the copy engine cannot address it");
  }
  return map;
}

int multiprocessors() {
  int device = 0;
  int count = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return count;
}

// By measurement (docs/kernels.md): large tiles where the device runs out of power, small ones where it runs out of
// them.
Work work_of(const Product& p) {
  return std::min(p.d.rows, p.d.columns) >= (p.symmetric ? 4096 : 2048) ? Work::kTogether : Work::kInTurns;
}

int64_t tile_rows(const Product& p) {
  return work_of(p) == Work::kTogether ? Ring<Work::kTogether>::kRows : Ring<Work::kInTurns>::kRows;
}

int64_t tile_count(const Product& p) {
  const int64_t rows = tile_rows(p);
  const int64_t down = (p.d.rows + rows - 1) / rows;
  const int64_t across = (p.d.columns + kTile - 1) / kTile;
  if (!p.symmetric) return down * across;
  int64_t count = 0;
  for (int64_t i = 1; i <= down; ++i) count += std::min(i * rows / kTile, across);
  return count;
}

template <typename T, Work kWork, bool kSymmetric, bool kAcrossA, bool kAcrossB, bool kBeta>
void launch_as(const Product& p, cudaStream_t stream) {
  auto* const kernel = product_kernel<T, kWork, kSymmetric, kAcrossA, kAcrossB, kBeta>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Ring<kWork>::kSharedBytes),
        "product");
  Shape shape{};
  shape.inner = static_cast<int>(p.a_transposed ? p.a.rows : p.a.columns);
  shape.rows = static_cast<int>(p.d.rows);
  shape.columns = static_cast<int>(p.d.columns);
  shape.batch = static_cast<int>(p.batch);
  shape.tiles_across = static_cast<int>((p.d.columns + kTile - 1) / kTile);
  shape.tiles = static_cast<int>(tile_count(p));
  shape.c_pitch = p.c.pitch;
  shape.c_stride = p.c.stride;
  shape.scalars_stride = p.scalars_stride;
  const CUtensorMap a = boxes_of(p.a, p.type, p.batch, kAcrossA ? 64 : Ring<kWork>::kRows);
  const CUtensorMap b = boxes_of(p.b, p.type, p.batch, kAcrossB ? 64 : kTile);
  const CUtensorMap d = boxes_of(p.d, p.type, p.batch, 64);
  const CUtensorMap d_strip = boxes_of(p.d, p.type, p.batch, 16);
  const auto blocks = static_cast<unsigned>(std::min<int64_t>(multiprocessors(), tile_count(p) * p.batch));
  kernel<<<blocks, kThreads, Ring<kWork>::kSharedBytes, stream>>>(a, b, d, d_strip, static_cast<const T*>(p.c.data),
                                                                  p.scalars, shape);
  check(cudaGetLastError(), "product");
}

template <typename T, bool kSymmetric, bool kAcrossA, bool kAcrossB, bool kBeta>
void launch(const Product& p, cudaStream_t stream) {
  if (work_of(p) == Work::kTogether) {
    launch_as<T, Work::kTogether, kSymmetric, kAcrossA, kAcrossB, kBeta>(p, stream);
  } else {
    launch_as<T, Work::kInTurns, kSymmetric, kAcrossA, kAcrossB, kBeta>(p, stream);
  }
}

template <typename T>
void launch(const Product& p, cudaStream_t stream) {
  // Along the inner dim lie A as it is and B transposed.
  const bool beta = p.c.data != nullptr;
  const bool across_b = !p.b_transposed;
  if (p.symmetric) {
    if (p.a_transposed != across_b) throw InvalidArgument("product: a symmetric one of operands that lie differently");
    if (p.a_transposed) {
      if (beta) throw InvalidArgument("product: a symmetric one of transposed operands with C");
      return launch<T, true, true, true, false>(p, stream);
    }
    return beta ? launch<T, true, false, false, true>(p, stream) : launch<T, true, false, false, false>(p, stream);
  }
  if (p.a_transposed) throw InvalidArgument("product: a general one with A transposed");
  if (across_b) {
    return beta ? launch<T, false, false, true, true>(p, stream) : launch<T, false, false, true, false>(p, stream);
  }
  return beta ? launch<T, false, false, false, true>(p, stream) : launch<T, false, false, false, false>(p, stream);
}

}  // namespace

bool products_available(int device) {
  int major = 0;
  int minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "cudaDeviceGetAttribute");
  return major == 9 && minor == 0;
}

void multiply(const Product& p, Queue& queue, Cublas* instead) {
  if (p.batch == 0 || p.d.rows == 0 || p.d.columns == 0) return;
  const auto require = [&](const char* name, const Matrices& m, int64_t rows, int64_t columns) {
    const bool aligned = reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && m.pitch % 8 == 0 && m.stride % 8 == 0;
    if (m.rows == rows && m.columns == columns && aligned && m.pitch >= columns) return;
    throw InvalidArgument(std::string("product: ") + name + " is " + std::to_string(m.rows) + "x" +
                          std::to_string(m.columns) + ", pitch " + std::to_string(m.pitch) + ", expected " +
                          std::to_string(rows) + "x" + std::to_string(columns) + " on 16 bytes");
  };
  const int64_t inner = p.a_transposed ? p.a.rows : p.a.columns;
  require("A", p.a, p.a_transposed ? inner : p.d.rows, p.a_transposed ? p.d.rows : inner);
  require("B", p.b, p.b_transposed ? p.d.columns : inner, p.b_transposed ? inner : p.d.columns);
  require("D", p.d, p.d.rows, p.symmetric ? p.d.rows : p.d.columns);
  if (p.c.data != nullptr) require("C", p.c, p.d.rows, p.d.columns);
  const int64_t kind = static_cast<int64_t>(p.type) | (p.a_transposed ? 2 : 0) | (p.b_transposed ? 4 : 0) |
                       (p.symmetric ? 8 : 0) | (instead != nullptr ? 16 : 0);
  for (const Matrices& m : {p.a, p.b, p.c, p.d}) {
    queue.sign(std::array{reinterpret_cast<int64_t>(m.data), m.rows, m.columns, m.pitch, m.stride});
  }
  queue.launch("product", {kind, p.batch, reinterpret_cast<int64_t>(p.scalars), p.scalars_stride},
               [&](cudaStream_t stream) {
                 if (instead != nullptr) return instead->multiply(p, stream);
                 p.type == Half::kF16 ? launch<__half>(p, stream) : launch<__nv_bfloat16>(p, stream);
               });
}

double flops(const Product& p) {
  const int64_t inner = p.a_transposed ? p.a.rows : p.a.columns;
  return 2.0 * kTile * static_cast<double>(tile_rows(p) * tile_count(p)) * static_cast<double>(inner) *
         static_cast<double>(p.batch);
}

}  // namespace muster::kernels::cuda
