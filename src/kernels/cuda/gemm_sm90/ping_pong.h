// How two warpgroups of a block take turns at multiplying. For the device, and for the model that tests it.
//
// The first has tiles 0, 2, ... of the block, the second tiles 1, 3, ... Both have a barrier, which the other's warps
// arrive at when they have waited for the last stage of a tile. All of them: a barrier tells the last phase from the
// one before and from no other, so if one warp spoke for all, another might come so late that its turn was over, and
// wait for ever.
#pragma once

#include <cstdint>

#include "kernels/cuda/gemm_sm90/tile_scheduler.h"

namespace muster::kernels::cuda {

constexpr int kWarps = 4;  // of a warpgroup

// Of the phase that must be over before tile `number` of a block may begin; nothing has to be for the first.
MUSTER_TILES constexpr uint32_t turn_parity(int number) {
  return static_cast<uint32_t>(number / 2 + 1 + number % 2) & 1;
}

}  // namespace muster::kernels::cuda
