// Cuts blocks into pieces of similar size and shares them out among threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <span>

#include "kernels/cpu/thread_pool.h"

namespace muster::kernels::cpu {

// Elements per piece: large enough to be worth handing out, small enough to balance threads.
constexpr int64_t kPieceElements = int64_t{1} << 16;

struct Piece {
  int64_t row = 0;
  int64_t rows = 0;
  int64_t column = 0;
  int64_t columns = 0;
};

// How a rows x columns block is cut: between rows, and rows longer than a piece along their length.
struct Cut {
  Cut(int64_t rows, int64_t columns)
      : rows_(rows),
        columns_(columns),
        width(std::min(columns, kPieceElements)),
        height(columns == 0 ? 1 : std::max<int64_t>(1, kPieceElements / columns)),
        across(columns == 0 ? 0 : (columns + width - 1) / width),
        count(across * ((rows + height - 1) / height)) {}

  Piece piece(int64_t i) const {
    const int64_t row = i / across * height;
    const int64_t column = i % across * width;
    return {row, std::min(height, rows_ - row), column, std::min(width, columns_ - column)};
  }

 private:
  int64_t rows_;
  int64_t columns_;

 public:
  int64_t width;
  int64_t height;
  int64_t across;
  int64_t count;
};

// Calls f(block, piece, thread) for every piece of every block; cut(block) is the block's Cut.
template <typename Block, typename CutOf, typename F>
void each_piece(ThreadPool& pool, std::span<const Block> blocks, const CutOf& cut, const F& f) {
  int64_t total = 0;
  for (const Block& block : blocks) total += cut(block).count;
  std::atomic<int64_t> next{0};
  // Each thread walks the blocks once and takes the next piece that no other thread has taken.
  pool.run(std::min<int64_t>(pool.threads(), total), [&](int64_t, int thread) {
    int64_t first = 0;  // the block's first piece
    auto block = blocks.begin();
    for (int64_t mine = next++; mine < total; mine = next++) {
      while (mine - first >= cut(*block).count) first += cut(*block++).count;
      f(*block, cut(*block).piece(mine - first), thread);
    }
  });
}

}  // namespace muster::kernels::cpu
