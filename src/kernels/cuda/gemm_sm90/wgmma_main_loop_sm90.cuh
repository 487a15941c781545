// The consumers: two warpgroups of 128 threads each. In the main loop, a warpgroup multiplies the stages of a tile by
// wgmma and keeps the sums in registers.
#pragma once

#include "kernels/cuda/gemm_sm90/pipeline_sm90.cuh"

namespace muster::kernels::cuda::sm90 {

// Where a thread is among the consumers of its block and cluster.
template <Schedule kSchedule>
struct Consumer {
  using Config = BlockConfig<kSchedule>;

  __device__ __forceinline__ Consumer(const SharedMemory<kSchedule>& shared, int block)
      : shared(shared),
        block(block),
        warpgroup(static_cast<int>(threadIdx.x) / 128 - 1),
        warp(static_cast<int>(threadIdx.x) % 128 / 32),
        lane(static_cast<int>(threadIdx.x) % 32),
        elected(threadIdx.x % 128 == 0),
        buffer(shared.buffer(warpgroup)),
        peer_empty(Config::kClusterBlocks > 1 ? cluster_address(1 - block, shared.empty(0)) : 0) {}

  // Tells the producers of both blocks that this warpgroup has read a stage: either may load into it by multicast.
  __device__ __forceinline__ void release(int stage) const {
    if (!elected) return;
    mbarrier_arrive(shared.empty(stage));
    if (Config::kClusterBlocks > 1) mbarrier_arrive_cluster(peer_empty + 8 * stage);
  }

  const SharedMemory<kSchedule> shared;
  const int block;  // in the cluster
  const int warpgroup;
  const int warp;  // in the warpgroup
  const int lane;
  const bool elected;         // one thread per warpgroup
  const uint32_t buffer;      // shared address of the warpgroup's epilogue buffers
  const uint32_t peer_empty;  // cluster address of the other block's first empty mbarrier
};

// The sums of a warpgroup's two subtiles of 64 x 128: one below the other (ping-pong) or side by side (cooperative).
using Accumulators = float[2][64];

struct MainLoopTile {
  Tile tile;
  int number;  // among this block's tiles
  int steps;   // stages per tile
};

// Calls prefetch() when the last stage is being multiplied.
template <typename T, GemmVariant kVariant, typename Prefetch>
__device__ __forceinline__ void main_loop(Accumulators& sums, const Consumer<kVariant.schedule>& consumer,
                                          const GemmArguments& arguments, const MainLoopTile& tile,
                                          const Prefetch& prefetch) {
  using Config = BlockConfig<kVariant.schedule>;
  const auto& shared = consumer.shared;
  // The other warpgroup has waited for all of its stages: those that follow are this warpgroup's.
  if (!Config::kCooperative) mbarrier_wait(shared.turn(consumer.warpgroup), turn_parity(tile.number));
  auto state = PipelineState<Config::kStages>::after(tile.number * tile.steps);
  const uint32_t a_offset =
      (a_is_in_b<kVariant>(tile.tile, arguments) ? loaded_b<kVariant.schedule>(0, consumer.block) : 0) +
      (Config::kCooperative ? consumer.warpgroup * kBoxBytes : 0);
  for (int s = 0; s < tile.steps; ++s) {
    mbarrier_wait(shared.full(state.stage), state.parity);
    if (!Config::kCooperative && s + 1 == tile.steps) {
      __syncwarp();
      if (consumer.lane == 0) mbarrier_arrive(shared.turn(1 - consumer.warpgroup));
    }
    const uint32_t a = shared.stage(state.stage) + a_offset;
    const uint32_t b = shared.stage(state.stage) + Config::kStageABytes;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kStageDepth / 16; ++k) {
      const uint64_t b_operand = wgmma_descriptor<kVariant.b>(b, k);
      const bool first = s == 0 && k == 0;
      if constexpr (Config::kCooperative) {
        wgmma_m64n256k16<T, kVariant.a, kVariant.b>(sums, wgmma_descriptor<kVariant.a>(a, k), b_operand, first);
      } else {
        wgmma_m64n128k16<T, kVariant.a, kVariant.b>(sums[0], wgmma_descriptor<kVariant.a>(a, k), b_operand, first);
        wgmma_m64n128k16<T, kVariant.a, kVariant.b>(sums[1], wgmma_descriptor<kVariant.a>(a + kBoxBytes, k), b_operand,
                                                    first);
      }
    }
    wgmma_commit();
    if (s + 1 == tile.steps) prefetch();
    if (s > 0) {
      wgmma_wait<1>();
      consumer.release((state.stage + Config::kStages - 1) % Config::kStages);
    }
    state.advance();
  }
  wgmma_wait<0>();
  consumer.release((state.stage + Config::kStages - 1) % Config::kStages);
}

}  // namespace muster::kernels::cuda::sm90
