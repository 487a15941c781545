// How a batch of products is cut into tiles, and in which order they are gone through. For the host and the device.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define MUSTER_TILES __host__ __device__
#else
#define MUSTER_TILES
#endif

namespace muster::kernels::cuda {

struct Tile {
  int matrix;
  int row;  // of its first element
  int column;
};

struct Tiles {
  int across;  // in a row
  int count;   // of a matrix
};

// Tiles of side x side. Symmetric products have those on and below the diagonal.
inline Tiles tiles_of(bool symmetric, int side, int64_t rows, int64_t columns) {
  const auto down = static_cast<int>((rows + side - 1) / side);
  const auto across = static_cast<int>((columns + side - 1) / side);
  return {across, symmetric ? down * (down + 1) / 2 : down * across};
}

// The tiles of one matrix after those of another. Symmetric ones row by row. General ones in bands of eight rows, from
// left to right: what a device has in hand is then about as high as it is wide, and it loads the least.
template <bool kSymmetric, int kSide>
MUSTER_TILES Tile tile_at(int number, const Tiles& tiles) {
  int rest = number % tiles.count;
  int row = 0;
  int column = 0;
  if (kSymmetric) {
    while (rest > row) rest -= ++row;
    column = rest;
  } else {
    constexpr int kBand = 8;
    const int first = rest / (kBand * tiles.across) * kBand;
    const int left = tiles.count / tiles.across - first;
    const int high = left < kBand ? left : kBand;
    rest -= first * tiles.across;
    row = first + rest % high;
    column = rest / high;
  }
  return {number / tiles.count, row * kSide, column * kSide};
}

}  // namespace muster::kernels::cuda
