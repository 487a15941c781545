#include "support/shards.h"

#include <algorithm>
#include <cstring>

namespace muster::test {

namespace {

using engine::StateBlock;
using engine::StateShard;

int64_t width_of(StateType type) { return type == StateType::kF32 ? 4 : type == StateType::kI64 ? 8 : 2; }

// Strided in memory by 3 elements more than it needs, as a part of something larger would be.
StateBlock block_of(const Shape& shape, int32_t rank, int32_t ranks, int kind) {
  const int64_t elements = element_count(shape);
  const int64_t columns = shape.empty() || elements == 0 ? elements : shape.back();
  const int64_t rows = elements == 0 ? 0 : elements / columns;
  const auto begin = [&](int64_t n, int64_t r) { return n * r * (r + 1) / (int64_t{ranks} * (ranks + 1)); };
  StateBlock block;
  if (kind == 0) {  // rows
    block = {
        begin(rows, rank + 1) - begin(rows, rank), columns, begin(rows, rank) * columns, columns, nullptr, columns};
  } else if (kind == 1) {  // columns
    const int64_t first = begin(columns, rank);
    const int64_t mine = begin(columns, rank + 1) - first;
    block = {rows, mine, first, columns, nullptr, mine + 3};
  } else if (kind == 2) {  // a range
    block = {1, begin(elements, rank + 1) - begin(elements, rank), begin(elements, rank), 0, nullptr, 0};
  } else if (kind == 3) {  // every n-th
    block = {(elements - rank + ranks - 1) / ranks, 1, rank, ranks, nullptr, 1};
    if (rank >= elements) block.rows = 0;
  } else {  // a replica, with rows apart
    block = {rows, columns, 0, columns, nullptr, columns + 3};
    block.primary = rank == ranks - 1;
  }
  return block;
}

// Calls visit(index in the tensor, element in memory) for every element.
template <typename Visit>
void for_each_element(const StateShard& shard, Visit visit) {
  for (const StateBlock& block : shard.blocks) {
    for (int64_t i = 0; i < block.rows; ++i) {
      for (int64_t j = 0; j < block.columns; ++j) {
        visit(block.index + i * block.index_stride + j,
              block.data + (i * block.stride + j) * width_of(shard.info.type));
      }
    }
  }
}

}  // namespace

WholeState whole_state(int64_t step) {
  const std::vector<StateInfo> infos = {
      {"blocks.0.q:momentum", StateType::kBf16, {17, 9}}, {"blocks.0.q:weight", StateType::kF32, {17, 9}},
      {"blocks.0.q:updates", StateType::kI64, {}},        {"experts:mantissa", StateType::kU16, {3, 5, 7}},
      {"experts:variance", StateType::kF32, {3, 1, 7}},   {"norm \"x\" é:first", StateType::kF32, {11}},
      {"empty:second", StateType::kF32, {4, 0}},          {"counts", StateType::kI64, {2, 6}},
  };
  WholeState state;
  uint64_t x = 0x9e3779b97f4a7c15 * static_cast<uint64_t>(step + 1);
  for (const StateInfo& info : infos) {
    const int64_t elements = element_count(info.shape);
    WholeTensor& tensor = state.emplace_back();
    tensor.data.resize(static_cast<size_t>(elements * width_of(info.type)));
    for (std::byte& byte : tensor.data) {
      x = x * 6364136223846793005 + 1442695040888963407;
      byte = static_cast<std::byte>(x >> 56);
    }
    // Of random bytes, only what state may be: counters below 2^48, and means of squares from 0 on.
    if (info.name.ends_with(":updates")) tensor.data[6] = tensor.data[7] = std::byte{0};
    if (info.name.ends_with(":variance")) {
      for (size_t at = 3; at < tensor.data.size(); at += 4) tensor.data[at] &= std::byte{0x7f};
    }
    tensor.shard = {info, {{1, elements, 0, 0, tensor.data.data(), 0}}};
  }
  return state;
}

Shard::Shard(const WholeState& like, int32_t rank, int32_t ranks, int cut) {
  for (size_t t = 0; t < like.size(); ++t) {
    const StateInfo& info = like[t].shard.info;
    StateBlock block = block_of(info.shape, rank, ranks, (static_cast<int>(t) + cut) % kCuts);
    const int64_t elements = std::max<int64_t>(1, block.rows * std::max(block.columns, block.stride));
    memory_.emplace_back(static_cast<size_t>(elements * width_of(info.type)), kFiller);
    block.data = memory_.back().data();
    tensors.push_back({info, {block}});
  }
}

void Shard::take(const WholeState& state) {
  for (size_t t = 0; t < state.size(); ++t) {
    const int64_t width = width_of(tensors[t].info.type);
    for_each_element(tensors[t], [&](int64_t index, std::byte* element) {
      std::memcpy(element, state[t].data.data() + index * width, static_cast<size_t>(width));
    });
  }
}

bool Shard::holds(const WholeState& state) const {
  for (size_t t = 0; t < state.size(); ++t) {
    const int64_t width = width_of(tensors[t].info.type);
    std::vector<std::byte> wanted(memory_[t].size(), kFiller);
    for_each_element(tensors[t], [&](int64_t index, const std::byte* element) {
      std::memcpy(wanted.data() + (element - memory_[t].data()), state[t].data.data() + index * width,
                  static_cast<size_t>(width));
    });
    if (wanted != memory_[t]) return false;
  }
  return true;
}

bool Shard::untouched() const {
  return std::all_of(memory_.begin(), memory_.end(), [](const auto& bytes) {
    return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == kFiller; });
  });
}

}  // namespace muster::test
