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

int64_t elements(const StateInfo& info) { return tensor_bytes(info) / width(info.type); }

}  // namespace

std::string path_in(const std::string& directory, std::string_view name) {
  return (std::filesystem::path(directory) / name).string();
}

std::vector<FileTensors> match(const CheckpointIndex& index, std::span<const StateShard> slices,
                               const std::string& directory) {
  std::unordered_map<std::string_view, const StateShard*> wanted;
  for (const StateShard& slice : slices) wanted[slice.info.name] = &slice;
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
      files.back().push_back({number++, found->second, {offset, width(here.type)}});
      offset += tensor_bytes(here);
      wanted.erase(found);
    }
  }
  for (const StateShard& slice : slices) {
    if (!wanted.contains(slice.info.name)) continue;
    fail("checkpoint {}: has no tensor {}", base::path_text(directory), in_quotes(slice.info.name));
  }
  return files;
}

void check_blocks(std::span<const StateShard> slices) {
  for (const StateShard& slice : slices) {
    try {
      for (const StateBlock& piece : slice.pieces) check_block(piece, elements(slice.info));
    } catch (const InvalidArgument& error) {
      fail("tensor {}: {}", in_quotes(slice.info.name), error.what());
    }
  }
}

void check_same(Communicator& comm, std::string_view label, const std::string& text) {
  const auto mine = static_cast<int64_t>(checksum(text));
  int64_t bounds[] = {mine, ~mine};
  comm.all_reduce(bounds, ReduceOp::kMin, label)->wait();
  if (bounds[0] != ~bounds[1]) fail("{}: ranks disagree on the tensors or on what goes with them", label);
}

TensorSums::TensorSums(std::span<const FileTensors> files) : files_(files) {
  for (const FileTensors& file : files) tensors_ += file.size();
  sums_.resize(2 * tensors_);
  for (const FileTensors& file : files) {
    for (const CheckpointTensor& tensor : file) {
      for (const StateBlock& piece : tensor.slice->pieces) {
        if (piece.counts) sums_[tensors_ + tensor.number] += piece.rows * piece.columns;
      }
    }
  }
}

void TensorSums::reduce(Communicator& comm, std::string_view label) {
  comm.all_reduce(sums_, ReduceOp::kSum, label)->wait();
  for (const FileTensors& file : files_) {
    for (const CheckpointTensor& tensor : file) {
      const int64_t held = sums_[tensors_ + tensor.number];
      const StateInfo& info = tensor.slice->info;
      if (held == elements(info)) continue;
      throw Internal(fmt::format("{}: ranks stand for {} of the {} elements of tensor {}", label, held, elements(info),
                                 in_quotes(info.name)));
    }
  }
}

}  // namespace muster::engine
