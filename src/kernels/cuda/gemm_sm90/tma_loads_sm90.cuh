// The producer: one thread that fills the ring of stages by TMA loads.
#pragma once

#include "kernels/cuda/gemm_sm90/pipeline_sm90.cuh"
#include "kernels/cuda/gemm_sm90/tma_sm90.cuh"

namespace muster::kernels::cuda::sm90 {

// Loads 128 rows (MN) of an operand, from `mn` on, for one step: one box if K is contiguous, else two.
template <Major kMajor, typename Load>
__device__ __forceinline__ void load_operand(const Load& load, uint32_t to, int mn, int step) {
  if constexpr (kMajor == Major::kMN) {
    load(to, mn, step * kStageDepth);
    load(to + kBoxBytes, mn + 64, step * kStageDepth);
  } else {
    load(to, step * kStageDepth, mn);
  }
}

// Fills a stage for each step of each of the block's tiles.
template <GemmVariant kVariant>
__device__ __forceinline__ void load_tiles(const GemmTensorMaps& maps, const GemmArguments& arguments,
                                           const SharedMemory<kVariant.schedule>& shared, const PersistentGrid& grid) {
  using Config = BlockConfig<kVariant.schedule>;
  PipelineState<Config::kStages> state{.stage = 0, .parity = 1};
  Tile next = tile_at<kVariant>(grid.cluster, arguments);
  for (int t = grid.cluster; t < grid.tiles; t += grid.clusters) {
    const Tile tile = next;
    const int row = tile.row + grid.block * Config::kRows;
    const int column = tile.column + grid.block * kSubtileColumns;
    const int a_matrix = arguments.a_is_shared ? 0 : tile.matrix;
    const int b_matrix = arguments.b_is_shared ? 0 : tile.matrix;
    const bool skips_a = a_is_in_b<kVariant>(tile, arguments);
    for (int s = 0; s < grid.steps; ++s) {
      mbarrier_wait(shared.empty(state.stage), state.parity);
      const uint32_t full = shared.full(state.stage);
      mbarrier_arrive_expect_bytes(full, skips_a ? Config::kStageBytes - Config::kStageABytes : Config::kStageBytes);
      const uint32_t a = shared.stage(state.stage);
      const uint32_t b = loaded_b<kVariant.schedule>(a, grid.block);
      const auto load_a = [&](uint32_t to, int x, int y) { tma_load(to, maps.a, full, {x, y, a_matrix}); };
      const auto load_b = [&](uint32_t to, int x, int y) {
        Config::kClusterBlocks > 1 ? tma_load_multicast(to, maps.b, full, {x, y, b_matrix})
                                   : tma_load(to, maps.b, full, {x, y, b_matrix});
      };
      if (!skips_a) load_operand<kVariant.a>(load_a, a, row, s);
      load_operand<kVariant.b>(load_b, b, column, s);
      state.advance();
      if (s == 0) next = tile_at<kVariant>(t + grid.clusters, arguments);  // while this thread has time
    }
  }
}

}  // namespace muster::kernels::cuda::sm90
