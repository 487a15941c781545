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

// Rank 0 reads it for all: they see the same one even while it is replaced.
CheckpointIndex read_index(const std::string& directory, Communicator& comm) {
  const std::string path = path_in(directory, kIndexName);
  std::string text;
  together(comm, "read checkpoint index", [&] {
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

void check_files(const std::string& directory, const CheckpointIndex& index, const Communicator& comm) {
  for (size_t f = 0; f < index.files.size(); ++f) {
    if (f % static_cast<size_t>(comm.size()) != static_cast<size_t>(comm.rank())) continue;
    const FileEntry& entry = index.files[f];
    const base::File file = base::File::open_to_read(path_in(directory, entry.name));
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

void read_pieces(const std::string& directory, const CheckpointIndex& index, std::span<const FileTensors> files,
                 const Communicator& comm, Reading reading, TensorSums& sums) {
  for_each_file(files, comm, reading, [&](size_t f) {
    const base::File file = base::File::open_to_read(path_in(directory, index.files[f].name));
    BlockReader reader(file, reading);
    for (const CheckpointTensor& tensor : files[f]) {
      uint64_t sum = 0;
      for (const StateBlock& piece : tensor.slice->pieces) {
        if (!piece.counts && reading == Reading::kVerify) continue;
        const uint64_t part = reader.read(tensor.place, piece);
        if (piece.counts) sum += part;
      }
      sums.set(tensor.number, sum);
    }
  });
}

// Empty, or which tensor is not what the index says; the same on every rank.
std::string damage(const std::string& directory, const CheckpointIndex& index, const TensorSums& sums) {
  size_t number = 0;
  for (const FileEntry& file : index.files) {
    for (const TensorEntry& entry : file.tensors) {
      const uint64_t sum = sums[number++];
      if (sum == entry.checksum) continue;
      return fmt::format("{}: tensor {} is damaged: checksum {:016x}, the index says {:016x}",
                         base::path_text(path_in(directory, file.name)), in_quotes(entry.info.name), sum,
                         entry.checksum);
    }
  }
  return {};
}

}  // namespace

CheckpointMeta load_checkpoint(const std::string& directory, std::span<const StateShard> slices, Communicator& comm) {
  std::string text;
  together(comm, "load checkpoint", [&] {
    text = index_text(lay_out({}, slices, SaveOptions{}.file_bytes, 0));
    check_blocks(slices);
  });
  check_same(comm, "load checkpoint", text);

  const CheckpointIndex index = read_index(directory, comm);
  const std::vector<FileTensors> files = match(index, slices, directory);
  together(comm, "check checkpoint files", [&] { check_files(directory, index, comm); });

  TensorSums verified(files);
  together(comm, "verify checkpoint", [&] { read_pieces(directory, index, files, comm, Reading::kVerify, verified); });
  verified.reduce(comm, "sum checkpoint");
  if (const std::string damaged = damage(directory, index, verified); !damaged.empty()) fail("{}", damaged);

  TensorSums filled(files);
  std::string failure = failure_of_any(comm, "read checkpoint",
                                       [&] { read_pieces(directory, index, files, comm, Reading::kFill, filled); });
  if (failure.empty()) {
    filled.reduce(comm, "sum checkpoint again");
    failure = damage(directory, index, filled);
  }
  if (!failure.empty()) {
    throw Error(fmt::format("checkpoint {} changed while it was loaded, and the state is in between: {}",
                            base::path_text(directory), failure));
  }
  return index.meta;
}

}  // namespace muster::engine
