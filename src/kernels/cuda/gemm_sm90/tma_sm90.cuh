// TMA (tensor memory accelerator): copies boxes of batched matrices between global and shared memory. A tensor map
// describes the matrices and the size of a box; it must lie in a kernel's `const __grid_constant__` parameters.
#pragma once

#include <cstdint>
#include <cuda.h>

namespace muster::kernels::cuda::sm90 {

// First element of a box.
struct BoxPosition {
  int column;
  int row;
  int matrix;
};

// Loads a box into shared memory; TMA reports the bytes to `barrier`.
__device__ inline void tma_load(uint32_t to, const CUtensorMap& map, uint32_t barrier, BoxPosition box) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
          "r"(to),
      "l"(&map), "r"(barrier), "r"(box.column), "r"(box.row), "r"(box.matrix)
      : "memory");
}
// Loads a box into both blocks of a cluster, at the same address, and reports to the same mbarrier of each.
__device__ inline void tma_load_multicast(uint32_t to, const CUtensorMap& map, uint32_t barrier, BoxPosition box) {
  constexpr uint16_t kBothBlocks = 3;
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(box.column), "r"(box.row), "r"(box.matrix), "h"(kBothBlocks)
      : "memory");
}

// Stores a box to global memory. Stores are asynchronous; a thread commits those that it issued as one group.
__device__ inline void tma_store(const CUtensorMap& map, uint32_t from, BoxPosition box) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(&map), "r"(from),
               "r"(box.column), "r"(box.row), "r"(box.matrix)
               : "memory");
}
__device__ inline void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until TMA has read the shared memory of all this thread's groups but the last kPending.
template <int kPending>
__device__ inline void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}
// Waits until all of this thread's groups are in global memory.
__device__ inline void tma_store_wait_all() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Makes ordinary writes to shared memory visible to TMA.
__device__ inline void fence_for_tma() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Where TMA has a 16-byte chunk of a row in a box that is swizzled by 128 bytes, its rows' length.
__device__ inline uint32_t swizzled(uint32_t box, int row, int chunk) {
  return box + row * 128 + (chunk ^ (row & 7)) * 16;
}

}  // namespace muster::kernels::cuda::sm90
