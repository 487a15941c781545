// The tensors of a checkpoint and this rank's shards of them: what save and load share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/checkpoint/block_io.h"
#include "engine/checkpoint/checkpoint_index.h"
#include "engine/state/state_shard.h"
#include "muster/communicator.h"

namespace muster::engine {

std::string path_in(const std::string& directory, std::string_view name);

struct CheckpointTensor {
  size_t number = 0;                  // among all tensors of the index
  const StateShard* shard = nullptr;  // this rank's
  TensorPlace place;
};
using FileTensors = std::vector<CheckpointTensor>;  // in the order of the file

struct CheckpointFiles {
  std::string directory;
  CheckpointIndex index;
  std::vector<FileTensors> tensors;  // per file of the index
};

// Fails unless index and shards are of the same tensors. Points into `shards`.
CheckpointFiles match_tensors(const std::string& directory, CheckpointIndex index, std::span<const StateShard> shards);

// Fails unless every block lies in its tensor.
void check_blocks(std::span<const StateShard> shards);

// Throws InvalidArgument on every rank unless all ranks pass the same text. Without this check, ranks that disagree on
// the tensors would overwrite each other's data.
void check_same(Communicator& comm, std::string_view label, const std::string& text);

// A checksum per tensor, over all ranks.
class TensorSums {
 public:
  explicit TensorSums(std::span<const FileTensors> files);
  uint64_t operator[](size_t number) const { return static_cast<uint64_t>(sums_[number]); }
  void set(size_t number, uint64_t sum) { sums_[number] = static_cast<int64_t>(sum); }
  // Adds up the sums of all ranks; every rank calls it. Throws Internal on every rank unless the primary blocks cover
  // every element exactly once: an element without one would be zero in the file.
  void reduce(Communicator& comm, std::string_view label);

 private:
  std::span<const FileTensors> files_;
  size_t tensors_ = 0;
  std::vector<int64_t> sums_;  // a checksum per tensor, then a number of elements per tensor
};

// Only primary blocks are written and verified; loading fills copies too.
enum class BlockChoice : uint8_t { kPrimary, kAll };
inline bool chosen(const StateBlock& block, BlockChoice choice) {
  return block.rows > 0 && block.columns > 0 && (block.primary || choice == BlockChoice::kAll);
}

// Calls visit(f) for every file in which this rank has a chosen block. Each rank starts at another file, because
// writers to one file wait for each other.
template <typename Visit>
void for_each_file(const CheckpointFiles& files, BlockChoice choice, const Communicator& comm, Visit visit) {
  for (size_t i = 0; i < files.tensors.size(); ++i) {
    const size_t f = (i + static_cast<size_t>(comm.rank())) % files.tensors.size();
    const bool any = std::ranges::any_of(files.tensors[f], [&](const CheckpointTensor& tensor) {
      return std::ranges::any_of(tensor.shard->blocks, [&](const StateBlock& block) { return chosen(block, choice); });
    });
    if (any) visit(f);
  }
}

}  // namespace muster::engine
