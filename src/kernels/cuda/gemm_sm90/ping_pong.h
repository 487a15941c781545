// Ping-pong: two consumer warpgroups of a block use the tensor cores alternately, tile by tile. For the device, and for
// the model that tests it.
//
// The first has tiles 0, 2, ... of the block, the second tiles 1, 3, ... Each has a turn mbarrier. All warps of one
// warpgroup arrive at the other's when they have waited for the last stage of a tile. One warp must not arrive for all:
// a wait tells a phase from the one before it only, so with one or two stages per tile a late warp could miss its turn
// and hang.
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm_sm90/tile_scheduler.h"

namespace muster::kernels::cuda {

constexpr int kWarpgroupWarps = 4;

// Parity of the turn's phase that must be complete before the block's tile `number` may begin; for the first tile none
// has to be.
MUSTER_HOST_DEVICE constexpr uint32_t turn_parity(int number) {
  return static_cast<uint32_t>(number / 2 + 1 + number % 2) & 1;
}

}  // namespace muster::kernels::cuda
