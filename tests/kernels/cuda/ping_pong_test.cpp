// A model of the barriers of one block of product_kernel.cuh: whoever is late, everybody comes to an end.
#include "kernels/cuda/gemm_sm90/ping_pong.h"

#include <algorithm>
#include <array>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

namespace muster::kernels::cuda {
namespace {

constexpr int kStages = 5;

// As the device has them: nobody can tell a phase from the one two before.
struct Barrier {
  int count;
  int arrived = 0;
  uint32_t phase = 0;

  void arrive() {
    if (++arrived < count) return;
    arrived = 0;
    ++phase;
  }
  bool passed(uint32_t parity) const { return (phase & 1) != parity; }
};

struct Block {
  int tiles;
  int steps;     // stages of a tile
  bool for_all;  // one warp passes the turn on
  std::vector<Barrier> full = std::vector<Barrier>(kStages, Barrier{1});
  std::vector<Barrier> empty = std::vector<Barrier>(kStages, Barrier{1});
  std::array<Barrier, 2> turn{Barrier{for_all ? 1 : kWarps}, Barrier{for_all ? 1 : kWarps}};
  std::set<std::tuple<int, int, int>> issued{};  // products, by tile, step and warp: done when all four warps have

  bool multiplied(int tile, int step) const {
    for (int warp = 0; warp < kWarps; ++warp) {
      if (!issued.contains({tile, step, warp})) return false;
    }
    return true;
  }
};

struct Feeder {
  int next = 0;
  bool done(const Block& block) const { return next == block.tiles * block.steps; }
  bool advance(Block& block) {
    if (!block.empty[next % kStages].passed((next / kStages + 1) & 1)) return false;
    block.full[next++ % kStages].arrive();
    return true;
  }
};

struct Warp {
  enum class At : uint8_t { kTurn, kFull, kProduct };

  int group;
  int warp;
  int tile = group;
  int step = 0;
  int released = -1;  // of this tile's steps
  At at = At::kTurn;

  bool done(const Block& block) const { return tile >= block.tiles; }

  // False: it waits.
  bool advance(Block& block) {
    const int stage = tile * block.steps + step;
    if (at == At::kTurn) {
      if (!block.turn[group].passed(turn_parity(tile))) return false;
      at = At::kFull;
      return true;
    }
    if (at == At::kFull) {
      if (!block.full[stage % kStages].passed(stage / kStages & 1)) return false;
      const bool last = step + 1 == block.steps;
      if (last && (!block.for_all || warp == 0)) block.turn[1 - group].arrive();
      block.issued.insert({tile, step, warp});
      at = At::kProduct;
      return true;
    }
    // The product before the newest is waited for, and that one too after the last step.
    const bool last = step + 1 == block.steps;
    if (step > released + 1 || (last && step > released)) {
      if (!block.multiplied(tile, released + 1)) return false;
      ++released;
      if (warp == 0) block.empty[(tile * block.steps + released) % kStages].arrive();
      return true;
    }
    if (!last) {
      ++step;
      at = At::kFull;
      return true;
    }
    tile += 2;
    step = 0;
    released = -1;
    at = At::kTurn;
    return true;
  }
};

// Of so many schedules, each with another warp that is seldom let go on.
int hangs(int tiles, int steps, bool for_all) {
  constexpr unsigned kSchedules = 200;
  int count = 0;
  for (unsigned seed = 0; seed < kSchedules; ++seed) {
    std::mt19937 random(seed);
    Block block{tiles, steps, for_all};
    Feeder feeder;
    std::vector<Warp> warps;
    for (int i = 0; i < 2 * kWarps; ++i) warps.push_back({i / kWarps, i % kWarps});
    const size_t slow = seed % (warps.size() + 1);
    bool over = false;
    while (!over) {
      std::vector<size_t> order(warps.size() + 1);
      for (size_t i = 0; i < order.size(); ++i) order[i] = i;
      std::shuffle(order.begin(), order.end(), random);
      if (random() % 32 > 0) std::swap(*std::find(order.begin(), order.end(), slow), order.back());
      bool moved = false;
      over = true;
      for (const size_t i : order) {
        const bool done = i == warps.size() ? feeder.done(block) : warps[i].done(block);
        over = over && done;
        if (done) continue;
        moved = i == warps.size() ? feeder.advance(block) : warps[i].advance(block);
        if (moved) break;
      }
      if (over || moved) continue;
      ++count;
      break;
    }
  }
  return count;
}

TEST(Turns, EndWhoeverIsLate) {
  for (const int tiles : {1, 2, 3, 4, 5, 9}) {
    for (const int steps : {1, 2, 3, 7}) EXPECT_EQ(hangs(tiles, steps, false), 0) << tiles << " tiles of " << steps;
  }
}

TEST(Turns, WouldNotIfOneWarpSpokeForAll) {
  EXPECT_GT(hangs(4, 1, true), 0);
  EXPECT_GT(hangs(4, 2, true), 0);
  EXPECT_EQ(hangs(4, 3, true), 0);
}

}  // namespace
}  // namespace muster::kernels::cuda
