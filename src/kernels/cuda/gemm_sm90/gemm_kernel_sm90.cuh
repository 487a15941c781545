// The GEMM kernel for Hopper (sm_90a): a persistent grid of blocks with one producer warp that loads tiles of A and B
// by TMA, and two consumer warpgroups that multiply them by wgmma and store D by TMA.
#pragma once

#include "kernels/cuda/gemm_sm90/epilogue_sm90.cuh"
#include "kernels/cuda/gemm_sm90/tma_loads_sm90.cuh"
#include "kernels/cuda/gemm_sm90/wgmma_main_loop_sm90.cuh"

namespace muster::kernels::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) || !defined(__CUDA_ARCH__)
#define MUSTER_SM90 1
#endif

// For one of kGemmVariants, given by its index: nvcc 13.0 fails on a __global__ template with an argument of class
// type. The tensor maps must be grid constants: TMA reads them at their address in the kernel's parameters.
template <typename T, size_t kIndex>
__global__ void __launch_bounds__(kBlockThreads, 1)
    gemm_kernel(const __grid_constant__ GemmTensorMaps maps, const GemmArguments arguments) {
#ifdef MUSTER_SM90
  using namespace sm90;
  constexpr GemmVariant kVariant = kGemmVariant<kIndex>;
  using Config = BlockConfig<kVariant.schedule>;
  constexpr int kClusterBlocks = Config::kClusterBlocks;
  extern __shared__ __align__(1024) uint8_t memory[];
  const SharedMemory<kVariant.schedule> shared(memory);
  if (threadIdx.x == 0) shared.init_barriers();
  kClusterBlocks > 1 ? cluster_sync() : __syncthreads();

  const PersistentGrid grid{.tiles = arguments.grid.count * arguments.batch,
                            .steps = (arguments.inner + kStageDepth - 1) / kStageDepth,
                            .block = static_cast<int>(blockIdx.x) % kClusterBlocks,
                            .cluster = static_cast<int>(blockIdx.x) / kClusterBlocks,
                            .clusters = static_cast<int>(gridDim.x) / kClusterBlocks};
  if (threadIdx.x < 128) {
    release_registers<40>();
    if (threadIdx.x != 0) return;
    load_tiles<kVariant>(maps, arguments, shared, grid);
    if (kClusterBlocks > 1) cluster_sync();  // the other block must not multicast into a block that has exited
    return;
  }

  acquire_registers<232>();
  const Consumer<kVariant.schedule> consumer(shared, grid.block);
  int number = Config::kCooperative ? 0 : consumer.warpgroup;  // among this block's tiles
  constexpr int kSkip = Config::kCooperative ? 1 : 2;
  for (int t = grid.cluster + number * grid.clusters; t < grid.tiles; t += kSkip * grid.clusters, number += kSkip) {
    const Tile tile = tile_at<kVariant>(t, arguments);
    Epilogue<T, kVariant> epilogue(consumer, maps, arguments, tile);
    Accumulators sums;
    CRows c_rows;
    main_loop<T, kVariant>(sums, consumer, arguments, {.tile = tile, .number = number, .steps = grid.steps}, [&] {
      if (kVariant.adds_c) epilogue.prefetch_c(c_rows, 0);
    });
    epilogue.store(sums, c_rows);
  }
  if (consumer.lane == 0) tma_store_wait_all();
  if (kClusterBlocks > 1) cluster_sync();
#else
  __trap();  // compiled for another chip; gemm_available() is false there
#endif
}

#undef MUSTER_SM90

}  // namespace muster::kernels::cuda
