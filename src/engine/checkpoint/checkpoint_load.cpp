#include <algorithm>

#include <fmt/format.h>

#include "base/file.h"
#include "base/limits.h"
#include "base/text.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_tensors.h"
#include "engine/step/fail_together.h"

namespace muster::engine {

using base::fail;
using base::in_quotes;

namespace {

// Rank 0 reads the index for all ranks, so that they see the same one even while it is replaced.
CheckpointIndex read_index(const std::string& directory, Communicator& comm) {
  const std::string path = path_in(directory, kIndexName);
  std::string text;
  fail_together(comm, "read checkpoint index", [&] {
    if (comm.rank() != 0) return;
    const base::File file = base::File::open_to_read(path);
    const int64_t bytes = file.bytes();
    if (bytes > base::kMaxFileBytes) {
      fail("{}: has {} bytes; at most {} are read", base::path_text(path), bytes, base::kMaxFileBytes);
    }
    text.resize(static_cast<size_t>(bytes));
    file.read_at(0, text.data(), bytes);
  });
  auto bytes = static_cast<int64_t>(text.size());
  comm.broadcast(&bytes, sizeof bytes, 0, "checkpoint index size")->wait();
  text.resize(static_cast<size_t>(bytes));
  comm.broadcast(text.data(), bytes, 0, "checkpoint index")->wait();
  return parse_index(text, base::path_text(path));
}

// Sizes and headers. The ranks share out the files.
void check_files(const CheckpointFiles& files, const Communicator& comm) {
  for (auto f = static_cast<size_t>(comm.rank()); f < files.index.files.size(); f += static_cast<size_t>(comm.size())) {
    const FileEntry& entry = files.index.files[f];
    const base::File file = base::File::open_to_read(path_in(files.directory, entry.name));
    if (file.bytes() != entry.bytes) {
      fail("{}: has {} bytes, the index says {}", base::path_text(file.path()), file.bytes(), entry.bytes);
    }
    const std::string wanted = file_header(entry);
    std::string header(wanted.size(), '\0');
    file.read_at(0, header.data(), static_cast<int64_t>(header.size()));
    if (header != wanted) {
      const auto byte = std::mismatch(wanted.begin(), wanted.end(), header.begin()).first - wanted.begin();
      fail("{}: damaged: byte {} of its header is not what the index says", base::path_text(file.path()), byte);
    }
  }
}

// Returns the first value that the state may not have; empty if this rank read none.
std::string read_blocks(const CheckpointFiles& files, ReadMode mode, const Communicator& comm, TensorSums& sums) {
  std::string refused;
  const BlockChoice choice = mode == ReadMode::kFill ? BlockChoice::kAll : BlockChoice::kPrimary;
  for_each_file(files, choice, comm, [&](size_t f) {
    const base::File file = base::File::open_to_read(path_in(files.directory, files.index.files[f].name));
    BlockReader reader(file, mode);
    for (const CheckpointTensor& tensor : files.tensors[f]) {
      uint64_t sum = 0;
      for (const StateBlock& block : tensor.shard->blocks) {
        if (!chosen(block, choice)) continue;
        const uint64_t part = reader.read(tensor.place, block);
        if (block.primary) sum += part;
      }
      sums.set(tensor.number, sum);
    }
    if (refused.empty() && !reader.refused().empty()) {
      refused = fmt::format("{}: {}", base::path_text(file.path()), reader.refused());
    }
  });
  return refused;
}

// Says which tensor differs from the index; empty if none does. The same on every rank.
std::string damage(const CheckpointFiles& files, const TensorSums& sums) {
  size_t number = 0;
  for (const FileEntry& file : files.index.files) {
    for (const TensorEntry& entry : file.tensors) {
      const uint64_t sum = sums[number++];
      if (sum == entry.checksum) continue;
      return fmt::format("{}: tensor {} is damaged: checksum {:016x}, the index says {:016x}",
                         base::path_text(path_in(files.directory, file.name)), in_quotes(entry.info.name), sum,
                         entry.checksum);
    }
  }
  return {};
}

}  // namespace

CheckpointMeta load_checkpoint(const std::string& directory, std::span<const StateShard> shards, Communicator& comm) {
  std::string text;
  fail_together(comm, "load checkpoint", [&] {
    text = index_text(lay_out({}, shards, SaveOptions{}.file_bytes, 0));
    check_blocks(shards);
  });
  check_same(comm, "load checkpoint", text);

  const CheckpointFiles files = match_tensors(directory, read_index(directory, comm), shards);
  fail_together(comm, "check checkpoint files", [&] { check_files(files, comm); });

  TensorSums verified(files.tensors);
  std::string refused;
  fail_together(comm, "verify checkpoint", [&] { refused = read_blocks(files, ReadMode::kVerify, comm, verified); });
  verified.reduce(comm, "sum checkpoint");
  if (const std::string damaged = damage(files, verified); !damaged.empty()) fail("{}", damaged);
  fail_together(comm, "check values of checkpoint", [&] {
    if (!refused.empty()) fail("{}", refused);
  });

  TensorSums filled(files.tensors);
  std::string failure =
      failure_of_any(comm, "read checkpoint", [&] { read_blocks(files, ReadMode::kFill, comm, filled); });
  if (failure.empty()) {
    filled.reduce(comm, "sum checkpoint again");
    failure = damage(files, filled);
  }
  if (!failure.empty()) {
    throw Error(fmt::format("checkpoint {} changed while it was loaded, and the state may be partly loaded: {}",
                            base::path_text(directory), failure));
  }
  return files.index.meta;
}

}  // namespace muster::engine
