#include "kernels/cuda/gemm_sm90/tile_scheduler.h"

#include <map>
#include <utility>

#include <gmock/gmock.h>

namespace muster::kernels::cuda {
namespace {

constexpr int kMatrices = 3;

// Every tile that is needed once, and those of a matrix before those of the next.
template <bool kSymmetric, int kSide>
void expect_all(int64_t rows, int64_t columns) {
  const Tiles tiles = tiles_of(kSymmetric, kSide, rows, columns);
  for (int matrix = 0; matrix < kMatrices; ++matrix) {
    std::map<std::pair<int, int>, int> seen;
    for (int i = 0; i < tiles.count; ++i) {
      const Tile tile = tile_at<kSymmetric, kSide>(matrix * tiles.count + i, tiles);
      EXPECT_EQ(tile.matrix, matrix);
      EXPECT_EQ(++(seen[{tile.row, tile.column}]), 1);
    }
    for (int row = 0; row < rows; row += kSide) {
      for (int column = 0; column < columns; column += kSide) {
        const bool needed = !kSymmetric || column <= row;
        EXPECT_EQ(seen.erase({row, column}), needed ? 1U : 0U) << row << ", " << column;
      }
    }
    EXPECT_TRUE(seen.empty());
    ASSERT_FALSE(testing::Test::HasFailure()) << rows << "x" << columns;
  }
}

TEST(ProductTiles, AreAllThereOnce) {
  for (const int64_t rows : {1, 128, 130, 768, 2048, 2050, 2304, 11008}) {
    for (const int64_t columns : {8, 129, 768, 2048, 2176, 4096}) {
      expect_all<false, 128>(rows, columns);
      expect_all<false, 256>(rows, columns);
    }
    expect_all<true, 128>(rows, rows);
    expect_all<true, 256>(rows, rows);
  }
}

}  // namespace
}  // namespace muster::kernels::cuda
