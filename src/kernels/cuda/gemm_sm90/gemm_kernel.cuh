// The kernel of product.cu, for sm_90a; elsewhere it is empty.
#pragma once

#include "kernels/cuda/gemm_sm90/gemm.h"
#include "kernels/cuda/gemm_sm90/instructions_sm90.cuh"
#include "kernels/cuda/gemm_sm90/ping_pong.h"
#include "kernels/cuda/gemm_sm90/tile_scheduler.h"

namespace muster::kernels::cuda {

constexpr int kStrip = 128;  // columns that are summed up and written together
constexpr int kDepth = 64;
constexpr int kHalfBytes = 2;
constexpr int kBoxBytes = 64 * 64 * kHalfBytes;  // what the copy engine moves at once: 64 rows of 128 bytes
constexpr int kStagingBytes = 2 * kBoxBytes;     // of a warpgroup: half its part, 64 x 128, on its way out
constexpr int kThreads = 3 * 128;

// A block has two warpgroups that multiply, and a warp that feeds them from a ring of stages, each 64 deep.
// In turns: each has a 128 x 128 tile; while one multiplies, the other writes out what it had. Together: two blocks, a
// cluster, work on one 256 x 256 tile, for which less is loaded: each has 128 of its rows, 64 a warpgroup, and loads
// half of B's columns for both.
enum class Work : uint8_t { kInTurns, kTogether };

template <Work kWork>
struct Ring {
  static constexpr bool kTogether = kWork == Work::kTogether;
  static constexpr int kSide = kTogether ? 256 : 128;  // of a tile
  static constexpr int kRows = 128;                    // of it, a block
  static constexpr int kCluster = kSide / kRows;       // blocks
  static constexpr int kStages = kTogether ? 4 : 5;
  static constexpr int kBuffers = kTogether ? 1 : 2;  // a warpgroup, on the way out: one is staged, the other leaves
  static constexpr int kABytes = kRows * kDepth * kHalfBytes;
  static constexpr int kBytes = kABytes + kSide * kDepth * kHalfBytes;  // of a stage
  static constexpr int kBarrierBytes = 8 * (2 * kStages + 2);
  static constexpr int kSharedBytes = kStages * kBytes + 2 * kBuffers * kStagingBytes + kBarrierBytes;
};

struct Shape {
  int inner;
  int rows;
  int columns;
  int batch;
  bool same;  // A and B are one
  Tiles tiles;
  int64_t c_pitch;
  int64_t c_stride;
  int64_t scalars_stride;
};

// What a product writes besides D.
enum class Extra : uint8_t {
  kNone,
  kIdentity,  // D + a I
  kSquares,   // of rows, a sum for each tile
};

struct ExtraOutput {
  const Scalars* identity;
  float* squares;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
#define MUSTER_SM90 1
#endif

template <typename T, Work kWork, bool kSymmetric, bool kAcrossA, bool kAcrossB, bool kBeta, Extra kExtra>
__global__ void __launch_bounds__(kThreads, 1)
    product_kernel(const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
                   const __grid_constant__ CUtensorMap d_map, const __grid_constant__ CUtensorMap d_strip_map,
                   const __grid_constant__ CUtensorMap extra_map, const __grid_constant__ CUtensorMap extra_strip_map,
                   const T* __restrict__ c, const Scalars* __restrict__ scalars, const Shape shape,
                   const ExtraOutput extra) {
#ifdef MUSTER_SM90
  using namespace sm90;
  using Stages = Ring<kWork>;
  constexpr bool kTogether = Stages::kTogether;
  constexpr int kStages = Stages::kStages;
  constexpr int kStageBytes = Stages::kBytes;
  constexpr int kCluster = Stages::kCluster;
  extern __shared__ __align__(1024) uint8_t memory[];
  const uint32_t base = shared_address(memory);
  const uint32_t staging = base + kStages * kStageBytes;
  const uint32_t barriers = staging + 2 * Stages::kBuffers * kStagingBytes;
  const auto full = [&](int stage) { return barriers + 8 * stage; };
  const auto empty = [&](int stage) { return barriers + 8 * (kStages + stage); };
  const auto turn = [&](int warpgroup) { return barriers + 8 * (2 * kStages + warpgroup); };
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      barrier_init(full(s), 1);
      barrier_init(empty(s), (kTogether ? 2 : 1) * kCluster);
    }
    for (int g = 0; g < 2; ++g) barrier_init(turn(g), kWarps);
    barrier_init_fence();
  }
  kCluster > 1 ? cluster_sync() : __syncthreads();

  const int total = shape.tiles.count * shape.batch;
  const int steps = (shape.inner + kDepth - 1) / kDepth;
  const int block = static_cast<int>(blockIdx.x) % kCluster;
  const int first_tile = static_cast<int>(blockIdx.x) / kCluster;
  const int grid = static_cast<int>(gridDim.x) / kCluster;
  const auto tile_of = [&](int number) { return tile_at<kSymmetric, Stages::kSide>(number, shape.tiles); };
  // Its rows of A are the columns of B that this block loads.
  const auto loaded_once = [&](const Tile& tile) { return kSymmetric && shape.same && tile.row == tile.column; };
  if (threadIdx.x < 128) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x != 0) return;
    int stage = 0;
    uint32_t parity = 1;
    Tile next = tile_of(first_tile);
    for (int t = first_tile; t < total; t += grid) {
      const Tile tile = next;
      const int row = tile.row + block * Stages::kRows;
      const int column = tile.column + block * kStrip;
      const bool once = loaded_once(tile);
      const auto load_b = [&](uint32_t to, int x, int y) {
        kCluster > 1 ? load_box_for_both(to, b_map, full(stage), x, y, tile.matrix)
                     : load_box(to, b_map, full(stage), x, y, tile.matrix);
      };
      for (int s = 0; s < steps; ++s) {
        barrier_wait(empty(stage), parity);
        barrier_expect(full(stage), once ? kStageBytes - Stages::kABytes : kStageBytes);
        const uint32_t a = base + stage * kStageBytes;
        const uint32_t b = a + Stages::kABytes + block * 2 * kBoxBytes;
        if (!once && kAcrossA) {
          load_box(a, a_map, full(stage), row, s * kDepth, tile.matrix);
          load_box(a + kBoxBytes, a_map, full(stage), row + 64, s * kDepth, tile.matrix);
        }
        if (!once && !kAcrossA) load_box(a, a_map, full(stage), s * kDepth, row, tile.matrix);
        if constexpr (kAcrossB) {
          load_b(b, column, s * kDepth);
          load_b(b + kBoxBytes, column + 64, s * kDepth);
        } else {
          load_b(b, s * kDepth, column);
        }
        if (++stage == kStages) {
          stage = 0;
          parity ^= 1;
        }
        if (s == 0) next = tile_of(t + grid);  // while there is time
      }
    }
    if (kCluster > 1) cluster_sync();  // nobody writes into a block that is gone
    return;
  }

  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  const int group = static_cast<int>(threadIdx.x) / 128 - 1;
  const int warp = static_cast<int>(threadIdx.x) % 128 / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool elected = threadIdx.x % 128 == 0;
  const uint32_t part = staging + group * Stages::kBuffers * kStagingBytes;
  constexpr bool kTwo = Stages::kBuffers == 2 && kExtra != Extra::kIdentity;

  // Both blocks of a cluster load into a stage, so both must be through with it.
  const uint32_t empty_there = kCluster > 1 ? address_in(static_cast<uint32_t>(1 - block), empty(0)) : 0;
  const auto release = [&](int stage) {
    if (!elected) return;
    barrier_arrive(empty(stage));
    if (kCluster > 1) barrier_arrive_there(empty_there + 8 * stage);
  };
  int number = kTogether ? 0 : group;  // of this block's tiles
  const int skip = kTogether ? 1 : 2;
  for (int t = first_tile + number * grid; t < total; t += skip * grid, number += skip) {
    const Tile tile = tile_of(t);
    const auto [alpha, beta] = load_pair(scalars + tile.matrix * shape.scalars_stride);
    // A warpgroup's part has two halves of 64 x 128, one below the other or, together, beside it.
    const auto row_of = [&](int half) { return tile.row + block * Stages::kRows + (kTogether ? group : half) * 64; };
    const auto column_of = [&](int half) { return tile.column + (kTogether ? half * kStrip : 0); };
    // A warp has 16 rows of each half; 16 lanes with 16 bytes each are a row of C.
    const auto load_c = [&](uint4(&v)[8], int half) {
#pragma unroll
      for (int r = 0; r < 8; ++r) {
        const int row = row_of(half) + warp * 16 + 2 * r + lane / 16;
        const int column = column_of(half) + lane % 16 * 8;
        const bool inside = row < shape.rows && column < shape.columns;
        v[r] =
            inside ? load_global(c + tile.matrix * shape.c_stride + row * shape.c_pitch + column) : uint4{0, 0, 0, 0};
      }
    };
    uint4 c_rows[8];
    float sums[2][64];

    // The other group has waited for all its stages: those that follow are this group's.
    if (!kTogether) barrier_wait(turn(group), turn_parity(number));
    const int before = number * steps;
    int stage = before % kStages;
    uint32_t parity = before / kStages & 1;
    const uint32_t b_at = Stages::kABytes;
    const uint32_t a_at = (loaded_once(tile) ? b_at + block * 2 * kBoxBytes : 0) + (kTogether ? group * kBoxBytes : 0);
    for (int s = 0; s < steps; ++s) {
      barrier_wait(full(stage), parity);
      if (!kTogether && s + 1 == steps) {
        __syncwarp();
        if (lane == 0) barrier_arrive(turn(1 - group));
      }
      const uint32_t a = base + stage * kStageBytes + a_at;
      const uint32_t b = base + stage * kStageBytes + b_at;
      multiply_fence();
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k) {
        const uint64_t b_tile = kAcrossB ? tile_across(b + k * 2048) : tile_along(b + k * 32);
        const auto a_tile = [&](uint32_t at) {
          return kAcrossA ? tile_across(at + k * 2048) : tile_along(at + k * 32);
        };
        const bool first = s == 0 && k == 0;
        if constexpr (kTogether) {
          multiply_add<T, kAcrossA, kAcrossB>(sums[0], sums[1], a_tile(a), b_tile, first);
        } else {
          multiply_add<T, kAcrossA, kAcrossB>(sums[0], a_tile(a), b_tile, first);
          multiply_add<T, kAcrossA, kAcrossB>(sums[1], a_tile(a + kBoxBytes), b_tile, first);
        }
      }
      multiply_commit();
      if (kBeta && s + 1 == steps) load_c(c_rows, 0);
      if (s > 0) {
        multiply_wait<1>();
        release((stage + kStages - 1) % kStages);
      }
      if (++stage == kStages) {
        stage = 0;
        parity ^= 1;
      }
    }
    multiply_wait<0>();
    release((stage + kStages - 1) % kStages);

#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of(half);
      const int column = column_of(half);
      if (kTogether && (row >= shape.rows || column >= shape.columns)) continue;
      if (kSymmetric && column > row + 63) continue;  // above the diagonal
      // With two buffers: strips in the first and mirror images in the second, or in turn where there are none. Whoever
      // issues stores leaves as many groups behind in every half.
      const uint32_t out = part + (kTwo && !kSymmetric ? half * kStagingBytes : 0);
      const uint32_t mirrored = part + (kTwo ? kStagingBytes : 0);
      // Where element (row, 8 octet) is staged: as the copy engine swizzles it.
      const auto staged = [&](int staged_row, int octet) {
        return out + octet / 8 * kBoxBytes + staged_row * 128 + (octet % 8 ^ (staged_row & 7)) * 16;
      };
      if (lane == 0) {
        if (kTwo && (!kSymmetric || warp == 0)) {
          stores_read<1>();
        } else {
          stores_read();
        }
      }
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
      float squares[2] = {0, 0};
      const int columns_left = shape.columns - column - lane % 4 * 2;
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
        const Quad rounded = quad(q);
        store_quad(at, rounded);
        if constexpr (kExtra == Extra::kSquares) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {  // a lane's pairs: of its row and of the one 8 further, of octet q and the next
            const float2 pair = unpack<T>(rounded.v[i]);
            const int at_column = (q + i / 2) * 8;
            squares[i % 2] += at_column < columns_left ? pair.x * pair.x : 0;
            squares[i % 2] += at_column + 1 < columns_left ? pair.y * pair.y : 0;
          }
        }
      }
      if constexpr (kExtra == Extra::kSquares) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          squares[i] += __shfl_xor_sync(0xffffffff, squares[i], 1);
          squares[i] += __shfl_xor_sync(0xffffffff, squares[i], 2);
          const int of_row = row + warp * 16 + lane / 4 + 8 * i;
          const int strips = (shape.columns + kStrip - 1) / kStrip;
          const int64_t sum = static_cast<int64_t>(tile.matrix) * strips + column / kStrip;
          if (lane % 4 == 0 && of_row < shape.rows) extra.squares[sum * shape.rows + of_row] = squares[i];
        }
      }
      // Rounding makes a product of symmetric matrices a little asymmetric, which the next steps would magnify: what is
      // above the diagonal is a copy of what is below, also within the 64 x 64 that it runs through.
      const int to_diagonal = row - column;  // 0 or 64, or else all is below it
      const bool below = to_diagonal >= kStrip;
      if (kSymmetric && !below) {
        warpgroup_sync(1 + group);
#pragma unroll
        for (int q = 0; q < 16; q += 2) {
          const Quad all = quad(q);
#pragma unroll
          for (int i = 0; i < 4; ++i) {  // blocks of 8 x 8
            const int down = warp * 2 + i % 2;
            const int across = q + i / 2 - to_diagonal / 8;
            const auto place = [&](int r, int c) { return staged(r * 8 + lane % 8, to_diagonal / 8 + c); };
            if (across >= 0 && across < down) store_block_transposed(place(across, down), all.v[i]);
            if (across == down) store_block(place(down, down), mirrored_up(all.v[i], lane));
          }
        }
        publish();
        warpgroup_sync(1 + group);
      } else {
        publish();
        __syncwarp();
      }
      const auto store_strip = [&](const CUtensorMap& map) {
        const uint32_t strip = out + warp * 16 * 128;
        store_box(map, strip, column, row + warp * 16, tile.matrix);
        if (kSymmetric && to_diagonal == 0) return;  // the rest is above
        store_box(map, strip + kBoxBytes, column + 64, row + warp * 16, tile.matrix);
      };
      if (lane == 0) {
        store_strip(d_strip_map);
        if (kExtra == Extra::kIdentity && below) store_strip(extra_strip_map);
        store_commit();
      }
      if constexpr (kExtra == Extra::kIdentity) {
        if (!below) {
          if (lane == 0) stores_read();
          __syncwarp();
          const int strip_row = warp * 16 + lane;
          const int on_diagonal = to_diagonal + strip_row;  // its column in the strip
          if (lane < 16 && on_diagonal < kStrip) {
            const uint32_t at = staged(strip_row, on_diagonal / 8) - base + on_diagonal % 8 * kHalfBytes;
            T* const diagonal = reinterpret_cast<T*>(memory + at);
            *diagonal = static_cast<T>(static_cast<float>(*diagonal) + extra.identity->beta);
          }
          publish();
          __syncwarp();
          if (lane == 0) {
            store_strip(extra_strip_map);
            store_commit();
          }
        }
      }
      if (kSymmetric && to_diagonal > 0) {
        // The mirror image: the warpgroup's 64 x 128 transposed, rows of 128 bytes; half of it at the diagonal.
        if (kTwo && elected) stores_read<1>();
        if (!kTwo && lane == 0) stores_read();
        warpgroup_sync(1 + group);
#pragma unroll
        for (int q = 0; q < 16; q += 2) {
          const int image_row = (q + lane / 16) * 8 + lane % 8;
          const int octet = warp * 2 + lane / 8 % 2;
          store_quad_transposed(mirrored + image_row * 128 + (octet ^ (image_row & 7)) * 16, quad(q));
        }
        publish();
        warpgroup_sync(1 + group);
        if (elected) {
          store_box(d_map, mirrored, row, column, tile.matrix);
          if (below) store_box(d_map, mirrored + kBoxBytes, row, column + 64, tile.matrix);
          if (kExtra == Extra::kIdentity) {
            store_box(extra_map, mirrored, row, column, tile.matrix);
            if (below) store_box(extra_map, mirrored + kBoxBytes, row, column + 64, tile.matrix);
          }
        }
      }
      if (kSymmetric && elected) store_commit();
    }
  }
  if (lane == 0) stores_done();
  if (kCluster > 1) cluster_sync();
#else
  __trap();  // compiled for another chip: products_available() says so first
#endif
}

}  // namespace muster::kernels::cuda
