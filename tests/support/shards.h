// Tensors cut over ranks in all the ways that state is, for tests of what saves and loads them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/state/state_shard.h"

namespace muster::test {

struct WholeTensor {
  engine::StateShard shard;  // one block: all of `data`
  std::vector<std::byte> data;
};
using WholeState = std::vector<WholeTensor>;

// Tensors of every type and of awkward shapes. Every element depends on `step`, its tensor and its index.
WholeState whole_state(int64_t step);

// One rank's memory, filled with kFiller. How tensor t is cut is the kind (t + cut) % kCuts: rows, columns, element
// ranges of odd sizes, every n-th element, or a replica on each rank, of which the last is primary.
inline constexpr int kCuts = 5;
inline constexpr std::byte kFiller{0xa5};
class Shard {
 public:
  Shard(const WholeState& like, int32_t rank, int32_t ranks, int cut);

  std::vector<engine::StateShard> tensors;  // into memory

  void take(const WholeState& state);         // what this rank has of it
  bool holds(const WholeState& state) const;  // exactly that, and filler in between
  bool untouched() const;                     // filler only

 private:
  std::vector<std::vector<std::byte>> memory_;
};

}  // namespace muster::test
