// The pipeline between TMA and wgmma: a ring of stages in shared memory, each with a full and an empty mbarrier.
#pragma once

#include "kernels/cuda/gemm_sm90/gemm_config_sm90.cuh"
#include "kernels/cuda/gemm_sm90/mbarrier_sm90.cuh"
#include "kernels/cuda/gemm_sm90/ping_pong.h"

namespace muster::kernels::cuda::sm90 {

// Addresses in a block's shared memory: stages, epilogue buffers, mbarriers.
template <Schedule kSchedule>
struct SharedMemory {
  using Config = BlockConfig<kSchedule>;

  __device__ __forceinline__ explicit SharedMemory(uint8_t* memory)
      : memory(memory),
        stages(shared_address(memory)),
        buffers(stages + Config::kStages * Config::kStageBytes),
        barriers(buffers + 2 * Config::kEpilogueBuffers * kSubtileBytes) {}

  // In a stage, the block's rows of A are followed by the tile's columns of B.
  __device__ __forceinline__ uint32_t stage(int i) const { return stages + i * Config::kStageBytes; }
  __device__ __forceinline__ uint32_t buffer(int warpgroup) const {
    return buffers + warpgroup * Config::kEpilogueBuffers * kSubtileBytes;
  }
  __device__ __forceinline__ uint32_t full(int stage) const { return barriers + 8 * stage; }
  __device__ __forceinline__ uint32_t empty(int stage) const { return barriers + 8 * (Config::kStages + stage); }
  __device__ __forceinline__ uint32_t turn(int warpgroup) const {
    return barriers + 8 * (2 * Config::kStages + warpgroup);
  }

  // Called by one thread of the block. A stage is empty when all consumer warpgroups of the cluster that read it have
  // released it.
  __device__ __forceinline__ void init_barriers() const {
    for (int s = 0; s < Config::kStages; ++s) {
      mbarrier_init(full(s), 1);
      mbarrier_init(empty(s), (Config::kCooperative ? 2 : 1) * Config::kClusterBlocks);
    }
    for (int g = 0; g < 2; ++g) mbarrier_init(turn(g), kWarpgroupWarps);
    mbarrier_init_fence();
  }

  template <typename T>
  __device__ __forceinline__ T* pointer_to(uint32_t address) const {
    return reinterpret_cast<T*>(memory + (address - stages));
  }

  uint8_t* memory;
  uint32_t stages;
  uint32_t buffers;
  uint32_t barriers;
};

// Where the producer or a consumer is in the ring of stages. The parity is that of the phase it waits for.
template <int kStages>
struct PipelineState {
  int stage;
  uint32_t parity;

  // Where a consumer is after `steps` stages.
  static __device__ __forceinline__ PipelineState after(int steps) {
    return {steps % kStages, static_cast<uint32_t>(steps / kStages & 1)};
  }
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

template <GemmVariant kVariant>
__device__ __forceinline__ Tile tile_at(int number, const GemmArguments& arguments) {
  return cuda::tile_at<kVariant.symmetric, BlockConfig<kVariant.schedule>::kTileSide>(number, arguments.grid);
}

// True if a block's rows of A are among the columns of B that it loads, so that A is not loaded: tiles on the diagonal
// of A A^T.
template <GemmVariant kVariant>
__device__ __forceinline__ bool a_is_in_b(const Tile& tile, const GemmArguments& arguments) {
  return kVariant.symmetric && arguments.b_is_a && tile.row == tile.column;
}

// Where the columns of B that `block` of the cluster loads are in a stage.
template <Schedule kSchedule>
__device__ __forceinline__ uint32_t loaded_b(uint32_t stage, int block) {
  return stage + BlockConfig<kSchedule>::kStageABytes + block * 2 * kBoxBytes;
}

}  // namespace muster::kernels::cuda::sm90
