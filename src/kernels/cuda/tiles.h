// How a batch of products is cut into tiles, and in which order they are gone through. For the host and the device.
#pragma once

#include <algorithm>
#include <cstdint>

#ifdef __CUDACC__
#define MUSTER_TILES __host__ __device__
#else
#define MUSTER_TILES
#endif

namespace muster::kernels::cuda {

constexpr int kTile = 128;  // columns of a tile

struct Tile {
  int matrix;
  int row;  // of its first element
  int column;
};

struct Tiles {
  int across;  // in a row
  int count;   // of a matrix
};

// Tiles of `height` x kTile. Symmetric products have those on and below the diagonal.
inline Tiles tiles_of(bool symmetric, int height, int64_t rows, int64_t columns) {
  const auto down = static_cast<int>((rows + height - 1) / height);
  const auto across = static_cast<int>((columns + kTile - 1) / kTile);
  if (!symmetric) return {across, down * across};
  int count = 0;
  for (int i = 1; i <= down; ++i) count += std::min(i * height / kTile, across);
  return {across, count};
}

// The tiles of one matrix after those of another. Symmetric ones row by row. General ones in bands of eight rows, from
// left to right: what 132 multiprocessors have in hand is then about as high as it is wide, and they load the least.
// Numbers 2 i and 2 i + 1 are neighbours in a row, where rows have an even number of tiles.
template <bool kSymmetric, int kRows>
MUSTER_TILES Tile tile_at(int number, const Tiles& tiles) {
  int rest = number % tiles.count;
  int row = 0;
  int column = 0;
  if (kSymmetric) {
    constexpr int kMore = kRows / kTile;
    for (int width = kMore; rest >= width; width = width + kMore < tiles.across ? width + kMore : tiles.across) {
      rest -= width;
      ++row;
    }
    column = rest;
  } else {
    constexpr int kBand = 8;
    const int first = rest / (kBand * tiles.across) * kBand;
    const int left = tiles.count / tiles.across - first;
    const int high = left < kBand ? left : kBand;
    const int width = tiles.across % 2 == 0 ? 2 : tiles.across;
    rest -= first * tiles.across;
    row = first + rest / width % high;
    column = rest / width / high * width + rest % width;
  }
  return {number / tiles.count, row * kRows, column * kTile};
}

}  // namespace muster::kernels::cuda
