// Tile scheduler: how the D of a batched GEMM is cut into tiles, and which cluster computes which tile when. For the
// host and the device.
#pragma once

#include <cstdint>

#include "kernels/host_device.h"

namespace muster::kernels::cuda {

struct Tile {
  int matrix;
  int row;  // of its first element
  int column;
};

// The tiles of one matrix.
struct TileGrid {
  int columns;  // tiles per row of tiles
  int count;    // tiles to compute
};

// Cuts a matrix into tiles of side x side. A symmetric one has those on and below the diagonal.
inline TileGrid tile_grid(bool symmetric, int side, int64_t rows, int64_t columns) {
  const auto down = static_cast<int>((rows + side - 1) / side);
  const auto across = static_cast<int>((columns + side - 1) / side);
  return {across, symmetric ? down * (down + 1) / 2 : down * across};
}

// Tile `number` of the batch: matrix by matrix. Symmetric matrices go row by row. General ones go in bands of eight
// rows of tiles, from left to right: the tiles that are computed at the same time then cover about as many rows as
// columns, which loads the least.
template <bool kSymmetric, int kSide>
MUSTER_HOST_DEVICE Tile tile_at(int number, const TileGrid& grid) {
  int rest = number % grid.count;
  int row = 0;
  int column = 0;
  if (kSymmetric) {
    while (rest > row) rest -= ++row;
    column = rest;
  } else {
    constexpr int kBand = 8;
    const int first = rest / (kBand * grid.columns) * kBand;
    const int left = grid.count / grid.columns - first;
    const int high = left < kBand ? left : kBand;
    rest -= first * grid.columns;
    row = first + rest % high;
    column = rest / high;
  }
  return {number / grid.count, row * kSide, column * kSide};
}

// A persistent grid: as many clusters as the device runs at once. Cluster i computes tiles i, i + clusters,
// i + 2 clusters, ... below `tiles`.
struct PersistentGrid {
  int tiles;
  int steps;  // stages per tile
  int block;  // this block's number in its cluster
  int cluster;
  int clusters;
};

}  // namespace muster::kernels::cuda
