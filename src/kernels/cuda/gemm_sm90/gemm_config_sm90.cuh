// What the sm_90a GEMM kernel is compiled for, what a launch passes to it, and how it lays out shared memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cuda.h>

#include "kernels/cuda/gemm_sm90/gemm.h"
#include "kernels/cuda/gemm_sm90/tile_scheduler.h"
#include "kernels/cuda/gemm_sm90/wgmma_sm90.cuh"

namespace muster::kernels::cuda {

constexpr int kBlockThreads = 3 * 128;  // a producer and two consumer warpgroups
constexpr int kElementBytes = 2;
constexpr int kStageDepth = 64;                     // of the inner dimension
constexpr int kBoxBytes = 64 * 64 * kElementBytes;  // of a TMA box of 64 rows of 128 bytes
constexpr int kSubtileColumns = 128;                // the epilogue stores 64 x 128 per warpgroup at a time
constexpr int kSubtileBytes = 2 * kBoxBytes;

// How the two consumer warpgroups of a block share work. Ping-pong: each has a 128 x 128 tile of its own; while one
// runs its main loop, the other runs its epilogue. Cooperative: a cluster of two blocks computes one 256 x 256 tile,
// which loads less: each block has 128 of its rows, 64 per warpgroup, and multicasts half of B's columns to both
// blocks.
enum class Schedule : uint8_t { kPingPong, kCooperative };

// What the epilogue writes besides D.
enum class SecondOutput : uint8_t { kNone, kPlusIdentity, kRowSquares, kRemainder };

// One instantiation of the kernel, the element type aside.
struct GemmVariant {
  Schedule schedule = Schedule::kPingPong;
  bool symmetric = false;
  Major a = Major::kK;
  Major b = Major::kK;
  bool adds_c = false;
  SecondOutput second = SecondOutput::kNone;

  bool operator==(const GemmVariant&) const = default;
};

// The kernels that are compiled: what Newton-Schulz asks for, with both schedules; and what sketches ask for, which
// have few rows, with the one for small D.
constexpr std::array kGemmVariants = [] {
  constexpr Major kMN = Major::kMN;
  constexpr SecondOutput kPlusIdentity = SecondOutput::kPlusIdentity;
  constexpr SecondOutput kRowSquares = SecondOutput::kRowSquares;
  constexpr std::array kBoth{
      GemmVariant{.symmetric = true},
      GemmVariant{.symmetric = true, .a = kMN, .b = kMN},
      GemmVariant{.symmetric = true, .adds_c = true},
      GemmVariant{.symmetric = true, .adds_c = true, .second = kPlusIdentity},
      GemmVariant{},
      GemmVariant{.second = kRowSquares},
      GemmVariant{.adds_c = true},
      GemmVariant{.adds_c = true, .second = kRowSquares},
      GemmVariant{.b = kMN},
      GemmVariant{.b = kMN, .second = kRowSquares},
      GemmVariant{.b = kMN, .adds_c = true},
      GemmVariant{.b = kMN, .adds_c = true, .second = kRowSquares},
  };
  constexpr std::array kPingPongOnly{
      GemmVariant{.second = SecondOutput::kRemainder},
      GemmVariant{.b = kMN, .second = SecondOutput::kRemainder},
  };
  std::array<GemmVariant, 2 * kBoth.size() + kPingPongOnly.size()> all{};
  for (size_t i = 0; i < kBoth.size(); ++i) {
    all[i] = all[i + kBoth.size()] = kBoth[i];
    all[i + kBoth.size()].schedule = Schedule::kCooperative;
  }
  for (size_t i = 0; i < kPingPongOnly.size(); ++i) all[i + 2 * kBoth.size()] = kPingPongOnly[i];
  return all;
}();

template <size_t kIndex>
constexpr GemmVariant kGemmVariant = kGemmVariants[kIndex];

template <Schedule kSchedule>
struct BlockConfig {
  static constexpr bool kCooperative = kSchedule == Schedule::kCooperative;
  static constexpr int kTileSide = kCooperative ? 256 : 128;
  static constexpr int kRows = 128;  // of the tile, per block
  static constexpr int kClusterBlocks = kTileSide / kRows;
  static constexpr int kStages = kCooperative ? 4 : 5;
  static constexpr int kEpilogueBuffers =
      kCooperative ? 1 : 2;  // per warpgroup; with two, one fills while TMA reads one
  static constexpr int kStageABytes = kRows * kStageDepth * kElementBytes;
  static constexpr int kStageBytes = kStageABytes + kTileSide * kStageDepth * kElementBytes;
  static constexpr int kBarrierBytes = 8 * (2 * kStages + 2);
  static constexpr int kSharedBytes = kStages * kStageBytes + 2 * kEpilogueBuffers * kSubtileBytes + kBarrierBytes;
};

// Boxes of an output: 64 x 64 for mirror images, 16 x 64 for the rows of one warp.
struct StoreMaps {
  CUtensorMap image;
  CUtensorMap rows;
};

struct GemmTensorMaps {
  CUtensorMap a;
  CUtensorMap b;
  StoreMaps d;
  StoreMaps second;  // D + beta I, or the remainder
};

struct GemmArguments {
  int inner;
  int rows;  // of D
  int columns;
  int batch;
  bool b_is_a;       // A and B are the same matrices
  bool a_is_shared;  // by the whole batch
  bool b_is_shared;
  TileGrid grid;
  int64_t c_pitch;
  int64_t c_stride;
  int64_t scalars_stride;
  const uint16_t* c;
  const Scalars* scalars;
  const Scalars* identity;  // D + beta I
  float* row_squares;
};

}  // namespace muster::kernels::cuda
