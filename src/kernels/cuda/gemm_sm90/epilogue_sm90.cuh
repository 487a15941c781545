// The epilogue of a consumer warpgroup: scales a tile's sums, adds C, rounds them, and stores D by TMA. Of a symmetric
// D, tiles below the diagonal are stored a second time as their mirror images. It can also write D + beta I, what
// rounding D lost, or sums of squares of D's rows.
#pragma once

#include "kernels/cuda/gemm_sm90/matrix_fragments_sm90.cuh"
#include "kernels/cuda/gemm_sm90/tma_sm90.cuh"
#include "kernels/cuda/gemm_sm90/wgmma_main_loop_sm90.cuh"

namespace muster::kernels::cuda::sm90 {

// The 64 x 128 elements of D that a warpgroup stores at a time.
struct Subtile {
  int row;  // of its first element
  int column;
  uint32_t staged;     // shared address of two swizzled boxes of 64 x 64
  uint32_t mirrored;   // shared address of the same, transposed
  uint32_t remainder;  // shared address of what rounding lost

  // Where eight elements, `chunk` of row `r`, are staged.
  __device__ __forceinline__ uint32_t staged_at(int r, int chunk) const {
    return staged + chunk / 8 * kBoxBytes + r * 128 + (chunk % 8 ^ (r & 7)) * 16;
  }
  __device__ __forceinline__ Subtile of_remainder() const { return {row, column, remainder, mirrored, remainder}; }
};

// A warp's rows of C for one subtile.
using CRows = uint4[8];

// Where the diagonal of a symmetric D is, seen from a subtile.
struct Diagonal {
  int distance;  // columns from the subtile's first element: 0 or 64 if the diagonal crosses the subtile
  bool outside;  // it does not: all of the subtile is below
};

template <typename T, GemmVariant kVariant>
class Epilogue {
 public:
  __device__ __forceinline__ Epilogue(const Consumer<kVariant.schedule>& consumer, const GemmTensorMaps& maps,
                                      const GemmArguments& arguments, const Tile& tile)
      : consumer_(consumer),
        maps_(maps),
        arguments_(arguments),
        tile_(tile),
        scalars_(load_pair_ahead(arguments.scalars + tile.matrix * arguments.scalars_stride)) {}

  // Loads C for a subtile ahead of its use. A warp has 16 rows of each; 16 lanes with 16 bytes each are a row.
  __device__ __forceinline__ void prefetch_c(CRows& c_rows, int half) const {
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      const int row = row_of(half) + consumer_.warp * 16 + 2 * r + consumer_.lane / 16;
      const int column = column_of(half) + consumer_.lane % 16 * 8;
      const bool inside = row < arguments_.rows && column < arguments_.columns;
      c_rows[r] =
          inside ? load_ahead(arguments_.c + tile_.matrix * arguments_.c_stride + row * arguments_.c_pitch + column)
                 : uint4{0, 0, 0, 0};
    }
  }

  // Stores the warpgroup's part of the tile. Overwrites the sums.
  __device__ __forceinline__ void store(Accumulators& sums, CRows& c_rows) const {
    const int rows = arguments_.rows;
    const int columns = arguments_.columns;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = row_of(half);
      const int column = column_of(half);
      if (Config::kCooperative && (row >= rows || column >= columns)) continue;
      if (kSymmetric && column > row + 63) continue;  // above the diagonal
      // With two buffers, a symmetric D has its subtiles in the first and mirror images in the second; otherwise
      // subtiles alternate. Each thread that issues stores commits equally many groups per subtile.
      store_subtile({.row = row,
                     .column = column,
                     .staged = consumer_.buffer + (kTwoBuffers && !kSymmetric ? half * kSubtileBytes : 0),
                     .mirrored = consumer_.buffer + (kTwoBuffers ? kSubtileBytes : 0),
                     .remainder = consumer_.buffer + kSubtileBytes},
                    sums[half], c_rows, half);
    }
  }

 private:
  using Config = BlockConfig<kVariant.schedule>;
  static constexpr bool kSymmetric = kVariant.symmetric;
  static constexpr bool kPlusIdentity = kVariant.second == SecondOutput::kPlusIdentity;
  static constexpr bool kRowSquares = kVariant.second == SecondOutput::kRowSquares;
  static constexpr bool kRemainder = kVariant.second == SecondOutput::kRemainder;
  static_assert(!kRemainder || (Config::kEpilogueBuffers == 2 && !kSymmetric),
                "D and the remainder take a buffer each");
  static constexpr bool kTwoBuffers = Config::kEpilogueBuffers == 2 && !kPlusIdentity && !kRemainder;

  __device__ __forceinline__ int row_of(int half) const {
    return tile_.row + consumer_.block * Config::kRows + (Config::kCooperative ? consumer_.warpgroup : half) * 64;
  }
  __device__ __forceinline__ int column_of(int half) const {
    return tile_.column + (Config::kCooperative ? half * kSubtileColumns : 0);
  }

  __device__ __forceinline__ void store_subtile(const Subtile& subtile, float (&sums)[64], CRows& c_rows,
                                                int half) const {
    wait_for_buffer();
    if (kVariant.adds_c) {
      stage_c(subtile, c_rows);
      if (half == 0) prefetch_c(c_rows, 1);
    }
    scale(subtile, sums);
    const int distance = subtile.row - subtile.column;
    const Diagonal diagonal{.distance = distance, .outside = distance >= kSubtileColumns};
    if (kSymmetric && !diagonal.outside) {
      sync_warpgroup();
      mirror_at_diagonal(subtile, diagonal, sums);
      fence_for_tma();
      sync_warpgroup();
    } else {
      fence_for_tma();
      __syncwarp();
    }
    if (consumer_.lane == 0) {
      store_rows(maps_.d.rows, subtile, diagonal);
      if (kPlusIdentity && diagonal.outside) store_rows(maps_.second.rows, subtile, diagonal);
      if (kRemainder) store_rows(maps_.second.rows, subtile.of_remainder(), diagonal);
      tma_store_commit();
    }
    if (kPlusIdentity && !diagonal.outside) store_plus_identity(subtile, diagonal);
    if (kSymmetric && diagonal.distance > 0) store_mirror_image(subtile, diagonal, sums);
    if (kSymmetric && consumer_.elected) tma_store_commit();
  }

  __device__ __forceinline__ void sync_warpgroup() const { warpgroup_sync(1 + consumer_.warpgroup); }

  // Waits until TMA has read what is about to be overwritten.
  __device__ __forceinline__ void wait_for_buffer() const {
    if (consumer_.lane == 0) {
      if (kTwoBuffers && (!kSymmetric || consumer_.warp == 0)) {
        tma_store_wait_read<1>();
      } else {
        tma_store_wait_read<0>();
      }
    }
    if (kSymmetric) {
      sync_warpgroup();
    } else {
      __syncwarp();
    }
  }

  // Stages a warp's rows of C where D's will be, for ldmatrix.
  __device__ __forceinline__ void stage_c(const Subtile& subtile, const CRows& c_rows) const {
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      store_shared(subtile.staged_at(consumer_.warp * 16 + 2 * r + consumer_.lane / 16, consumer_.lane % 16),
                   c_rows[r]);
    }
    __syncwarp();
  }

  // Replaces sums by alpha sums + beta C and stages them, rounded: two chunks of 8 columns at a time. With kRemainder,
  // replaces them by what rounding lost, and stages that as well.
  __device__ __forceinline__ void scale(const Subtile& subtile, float (&sums)[64]) const {
    const auto [alpha, beta] = scalars_;
    float squares[2] = {0, 0};
    const int columns_left = arguments_.columns - subtile.column - consumer_.lane % 4 * 2;
#pragma unroll
    for (int chunk = 0; chunk < 16; chunk += 2) {
      const uint32_t at = subtile.staged_at(consumer_.warp * 16 + consumer_.lane % 16, chunk + consumer_.lane / 16);
      float* const v = &sums[chunk * 4];
      if (kVariant.adds_c) {
        const Fragments c = ldmatrix_x4(at);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = unpack<T>(c.v[i]);
          v[2 * i] = alpha * v[2 * i] + beta * pair.x;
          v[2 * i + 1] = alpha * v[2 * i + 1] + beta * pair.y;
        }
      } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) v[i] *= alpha;
      }
      const Fragments rounded = pack_fragments<T>(v);
      stmatrix_x4(at, rounded);
      if constexpr (kRemainder) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float2 pair = unpack<T>(rounded.v[i]);
          v[2 * i] -= pair.x;
          v[2 * i + 1] -= pair.y;
        }
        stmatrix_x4(at - subtile.staged + subtile.remainder, pack_fragments<T>(v));
      }
      if constexpr (kRowSquares) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {  // a lane has pairs of two rows, 8 apart, and of chunks chunk and chunk + 1
          const float2 pair = unpack<T>(rounded.v[i]);
          const int at_column = (chunk + i / 2) * 8;
          squares[i % 2] += at_column < columns_left ? pair.x * pair.x : 0;
          squares[i % 2] += at_column + 1 < columns_left ? pair.y * pair.y : 0;
        }
      }
    }
    if constexpr (kRowSquares) store_row_squares(subtile, squares);
  }

  // Adds up the squares of the four lanes that share a row.
  __device__ __forceinline__ void store_row_squares(const Subtile& subtile, float (&squares)[2]) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      squares[i] += __shfl_xor_sync(0xffffffff, squares[i], 1);
      squares[i] += __shfl_xor_sync(0xffffffff, squares[i], 2);
      const int row = subtile.row + consumer_.warp * 16 + consumer_.lane / 4 + 8 * i;
      const int sums_per_row = (arguments_.columns + kSubtileColumns - 1) / kSubtileColumns;
      const int64_t sum = static_cast<int64_t>(tile_.matrix) * sums_per_row + subtile.column / kSubtileColumns;
      if (consumer_.lane % 4 == 0 && row < arguments_.rows) {
        arguments_.row_squares[sum * arguments_.rows + row] = squares[i];
      }
    }
  }

  // Copies what is below the diagonal to above it, within the 64 x 64 box that the diagonal crosses. Rounding makes a
  // product of symmetric matrices slightly asymmetric, which the next Newton-Schulz steps would magnify.
  __device__ __forceinline__ void mirror_at_diagonal(const Subtile& subtile, const Diagonal& diagonal,
                                                     const float (&sums)[64]) const {
#pragma unroll
    for (int chunk = 0; chunk < 16; chunk += 2) {
      const Fragments all = pack_fragments<T>(&sums[chunk * 4]);
#pragma unroll
      for (int i = 0; i < 4; ++i) {  // blocks of 8 x 8
        const int down = consumer_.warp * 2 + i % 2;
        const int across = chunk + i / 2 - diagonal.distance / 8;
        const auto block_at = [&](int r, int c) {
          return subtile.staged_at(r * 8 + consumer_.lane % 8, diagonal.distance / 8 + c);
        };
        if (across >= 0 && across < down) stmatrix_x1_transposed(block_at(across, down), all.v[i]);
        if (across == down) stmatrix_x1(block_at(down, down), mirror_lower_triangle(all.v[i], consumer_.lane));
      }
    }
  }

  // Stores a warp's 16 rows of a subtile. One lane calls it.
  __device__ __forceinline__ void store_rows(const CUtensorMap& map, const Subtile& subtile,
                                             const Diagonal& diagonal) const {
    const uint32_t rows = subtile.staged + consumer_.warp * 16 * 128;
    const int row = subtile.row + consumer_.warp * 16;
    tma_store(map, rows, {subtile.column, row, tile_.matrix});
    if (kSymmetric && diagonal.distance == 0) return;  // the rest is above
    tma_store(map, rows + kBoxBytes, {subtile.column + 64, row, tile_.matrix});
  }

  // Adds beta to the diagonal in the staged subtile and stores it a second time.
  __device__ __forceinline__ void store_plus_identity(const Subtile& subtile, const Diagonal& diagonal) const {
    if (consumer_.lane == 0) tma_store_wait_read<0>();
    __syncwarp();
    const int row = consumer_.warp * 16 + consumer_.lane;
    const int column = diagonal.distance + row;
    if (consumer_.lane < 16 && column < kSubtileColumns) {
      const uint32_t at = subtile.staged_at(row, column / 8) + column % 8 * kElementBytes;
      T* const element = consumer_.shared.template pointer_to<T>(at);
      *element = static_cast<T>(static_cast<float>(*element) + arguments_.identity->beta);
    }
    fence_for_tma();
    __syncwarp();
    if (consumer_.lane == 0) {
      store_rows(maps_.second.rows, subtile, diagonal);
      tma_store_commit();
    }
  }

  // Stages the subtile transposed, in rows of 64 elements, and stores it above the diagonal; half of it if the diagonal
  // crosses the other half.
  __device__ __forceinline__ void store_mirror_image(const Subtile& subtile, const Diagonal& diagonal,
                                                     const float (&sums)[64]) const {
    if (kTwoBuffers && consumer_.elected) tma_store_wait_read<1>();
    if (!kTwoBuffers && consumer_.lane == 0) tma_store_wait_read<0>();
    sync_warpgroup();
#pragma unroll
    for (int q = 0; q < 16; q += 2) {
      const int row = (q + consumer_.lane / 16) * 8 + consumer_.lane % 8;
      const int chunk = consumer_.warp * 2 + consumer_.lane / 8 % 2;
      stmatrix_x4_transposed(swizzled(subtile.mirrored, row, chunk), pack_fragments<T>(&sums[q * 4]));
    }
    fence_for_tma();
    sync_warpgroup();
    if (consumer_.elected) {
      store_image(maps_.d.image, subtile, diagonal);
      if (kPlusIdentity) store_image(maps_.second.image, subtile, diagonal);
    }
  }
  __device__ __forceinline__ void store_image(const CUtensorMap& map, const Subtile& subtile,
                                              const Diagonal& diagonal) const {
    tma_store(map, subtile.mirrored, {subtile.row, subtile.column, tile_.matrix});
    if (!diagonal.outside) return;
    tma_store(map, subtile.mirrored + kBoxBytes, {subtile.row, subtile.column + 64, tile_.matrix});
  }

  const Consumer<kVariant.schedule>& consumer_;
  const GemmTensorMaps& maps_;
  const GemmArguments& arguments_;
  const Tile tile_;
  const float2 scalars_;  // alpha, beta
};

}  // namespace muster::kernels::cuda::sm90
