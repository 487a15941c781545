// The tensors of a checkpoint beside the pieces this rank has of them: what save and load share.
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

// A tensor of the index and this rank's part of it.
struct CheckpointTensor {
  size_t number = 0;  // among all of the index
  const StateShard* slice = nullptr;
  TensorPlace place;
};
using FileTensors = std::vector<CheckpointTensor>;  // of one file, in its order

// One a file of the index. Fails unless index and slices have the same tensors.
std::vector<FileTensors> match(const CheckpointIndex& index, std::span<const StateShard> slices,
                               const std::string& directory);

// Fails unless every piece lies in its tensor.
void check_blocks(std::span<const StateShard> slices);

// Throws InvalidArgument on every rank unless all have the same text. Ranks that take each other's tensors for their
// own would write over them.
void check_same(Communicator& comm, std::string_view label, const std::string& text);

// Checksums of all tensors, over all ranks.
class TensorSums {
 public:
  explicit TensorSums(std::span<const FileTensors> files);
  uint64_t operator[](size_t number) const { return static_cast<uint64_t>(sums_[number]); }
  void set(size_t number, uint64_t sum) { sums_[number] = static_cast<int64_t>(sum); }
  // From this rank's parts to the whole. Throws Internal on every rank if the pieces that count are not every element
  // once: an element nobody stands for would be a zero in the file.
  void reduce(Communicator& comm, std::string_view label);

 private:
  std::span<const FileTensors> files_;
  size_t tensors_ = 0;
  std::vector<int64_t> sums_;  // then how many elements they are of
};

// Calls visit(f) for the files in which this rank has something to do, each rank from another one on: writers to one
// file wait for each other.
template <typename Visit>
void for_each_file(std::span<const FileTensors> files, const Communicator& comm, Reading reading, Visit visit) {
  const auto mine = [reading](const StateBlock& piece) {
    return piece.rows > 0 && piece.columns > 0 && (piece.counts || reading == Reading::kFill);
  };
  for (size_t i = 0; i < files.size(); ++i) {
    const size_t f = (i + static_cast<size_t>(comm.rank())) % files.size();
    const bool any = std::any_of(files[f].begin(), files[f].end(), [&](const CheckpointTensor& tensor) {
      return std::any_of(tensor.slice->pieces.begin(), tensor.slice->pieces.end(), mine);
    });
    if (any) visit(f);
  }
}

}  // namespace muster::engine
