#include "engine/checkpoint/checkpoint_tensors.h"

#include <filesystem>
#include <unordered_map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/text.h"
#include "engine/checkpoint/checksum.h"

namespace muster::engine {

using base::fail;
using base::in_quotes;

namespace {

std::string kind_text(const StateInfo& info) {
  return fmt::format("{} [{}]", dtype_name(info.type), fmt::join(info.shape, ", "));
}

int64_t elements(const StateInfo& info) { return tensor_bytes(info) / byte_size(info.type); }

}  // namespace

std::string path_in(const std::string& directory, std::string_view name) {
  return (std::filesystem::path(directory) / name).string();
}

CheckpointFiles match_tensors(const std::string& directory, CheckpointIndex index, std::span<const StateShard> shards) {
  std::unordered_map<std::string_view, const StateShard*> wanted;
  for (const StateShard& shard : shards) wanted[shard.info.name] = &shard;
  std::vector<FileTensors> files;
  size_t number = 0;
  for (const FileEntry& file : index.files) {
    files.emplace_back();
    auto offset = static_cast<int64_t>(file_header(file).size());
    for (const TensorEntry& entry : file.tensors) {
      const auto found = wanted.find(entry.info.name);
      if (found == wanted.end()) {
        fail("checkpoint {}: holds tensor {}, which nothing here asks for: another model or other options",
             base::path_text(directory), in_quotes(entry.info.name));
      }
      const StateInfo& here = found->second->info;
      if (here.type != entry.info.type || here.shape != entry.info.shape) {
        fail("checkpoint {}: tensor {} is {}, but {} here", base::path_text(directory), in_quotes(entry.info.name),
             kind_text(entry.info), kind_text(here));
      }
      files.back().push_back({number++, found->second, {offset, byte_size(here.type), &found->second->info}});
      offset += tensor_bytes(here);
      wanted.erase(found);
    }
  }
  for (const StateShard& shard : shards) {
    if (!wanted.contains(shard.info.name)) continue;
    fail("checkpoint {}: has no tensor {}", base::path_text(directory), in_quotes(shard.info.name));
  }
  return {directory, std::move(index), std::move(files)};
}

void check_blocks(std::span<const StateShard> shards) {
  for (const StateShard& shard : shards) {
    try {
      for (const StateBlock& block : shard.blocks) check_block(block, elements(shard.info));
    } catch (const InvalidArgument& error) {
      fail("tensor {}: {}", in_quotes(shard.info.name), error.what());
    }
  }
}

void check_same(Communicator& comm, std::string_view label, const std::string& text) {
  const auto mine = static_cast<int64_t>(checksum(text));
  int64_t bounds[] = {mine, ~mine};
  comm.all_reduce(bounds, ReduceOp::kMin, label)->wait();
  if (bounds[0] != ~bounds[1]) fail("{}: ranks disagree on the tensors or on their metadata", label);
}

TensorSums::TensorSums(std::span<const FileTensors> files) : files_(files) {
  for (const FileTensors& file : files) tensors_ += file.size();
  sums_.resize(2 * tensors_);
  for (const FileTensors& file : files) {
    for (const CheckpointTensor& tensor : file) {
      for (const StateBlock& block : tensor.shard->blocks) {
        if (block.primary) sums_[tensors_ + tensor.number] += block.rows * block.columns;
      }
    }
  }
}

void TensorSums::reduce(Communicator& comm, std::string_view label) {
  comm.all_reduce(sums_, ReduceOp::kSum, label)->wait();
  for (const FileTensors& file : files_) {
    for (const CheckpointTensor& tensor : file) {
      const int64_t covered = sums_[tensors_ + tensor.number];
      const StateInfo& info = tensor.shard->info;
      if (covered == elements(info)) continue;
      throw Internal(fmt::format("{}: primary blocks cover {} of the {} elements of tensor {}", label, covered,
                                 elements(info), in_quotes(info.name)));
    }
  }
}

}  // namespace muster::engine
