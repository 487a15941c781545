#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <random>
#include <unistd.h>

#include "base/file.h"
#include "base/limits.h"
#include "base/text.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_tensors.h"
#include "engine/step/fail_together.h"

namespace muster::engine {

using base::fail;

namespace {

uint64_t random_token() {
  std::random_device device;
  return static_cast<uint64_t>(device()) << 32 | device();
}

void make_directory(const std::string& directory) {
  namespace fs = std::filesystem;
  std::error_code error;
  const bool made = fs::create_directories(directory, error);
  if (error) fail("cannot create {}: {}", base::path_text(directory), error.message());
  if (!made) return;
  const fs::path parent = fs::absolute(directory, error).lexically_normal().parent_path();
  if (!error) base::sync_directory(parent.string());
}

// Rank 0's alone: it is the one who knows whether the index that names these files came to be. Any other rank that
// lost the connection at the last moment would take away what a finished checkpoint needs.
class Unfinished {
 public:
  void add(std::string path) { paths_.push_back(std::move(path)); }
  void keep() { paths_.clear(); }
  ~Unfinished() {
    for (const std::string& path : paths_) ::unlink(path.c_str());
  }

 private:
  std::vector<std::string> paths_;
};

void create_files(const std::string& directory, const CheckpointIndex& index, const Communicator& comm) {
  for (size_t f = 0; f < index.files.size(); ++f) {
    if (f % static_cast<size_t>(comm.size()) != static_cast<size_t>(comm.rank())) continue;
    base::File file = base::File::create(path_in(directory, index.files[f].name));
    file.resize(index.files[f].bytes);
    const std::string header = file_header(index.files[f]);
    file.write_at(0, header.data(), static_cast<int64_t>(header.size()));
    file.finish();
  }
}

void write_pieces(const std::string& directory, const CheckpointIndex& index, std::span<const FileTensors> files,
                  const Communicator& comm, TensorSums& sums) {
  for_each_file(files, comm, Reading::kVerify, [&](size_t f) {
    // One at a time: a large state has more files than a process may open.
    base::File file = base::File::open_to_write(path_in(directory, index.files[f].name));
    BlockWriter writer(file);
    for (const CheckpointTensor& tensor : files[f]) {
      uint64_t sum = 0;
      for (const StateBlock& piece : tensor.slice->pieces) {
        if (piece.counts) sum += writer.write(tensor.place, piece);
      }
      sums.set(tensor.number, sum);
    }
    writer.flush();
    file.finish();
  });
}

// What a replaced checkpoint and broken-off saves have left.
void remove_others(const std::string& directory, const CheckpointIndex& index) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<std::string> others;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool named =
        std::any_of(index.files.begin(), index.files.end(), [&](const auto& f) { return f.name == name; });
    if (!named && is_checkpoint_file(name)) others.push_back(name);
  }
  // A file that cannot be removed is in nobody's way.
  for (const std::string& name : others) ::unlink(path_in(directory, name).c_str());
}

void commit(const std::string& directory, const CheckpointIndex& index, const std::string& temporary,
            Unfinished& unfinished) {
  {
    const std::string text = index_text(index);
    base::File file = base::File::create(temporary);
    file.write_at(0, text.data(), static_cast<int64_t>(text.size()));
    file.finish();
  }
  // The names of the files must not reach the disk after the index that names them.
  base::sync_directory(directory);
  const std::string path = path_in(directory, kIndexName);
  if (std::rename(temporary.c_str(), path.c_str()) != 0) base::fail_system("write", path);
  unfinished.keep();
  base::sync_directory(directory);
  remove_others(directory, index);
}

}  // namespace

void save_checkpoint(const std::string& directory, const CheckpointMeta& meta, std::span<const StateShard> slices,
                     Communicator& comm, const SaveOptions& options) {
  const bool lead = comm.rank() == 0;
  uint64_t token = 0;
  together(comm, "name checkpoint", [&] { token = lead ? random_token() : 0; });
  comm.broadcast(&token, sizeof token, 0, "checkpoint name")->wait();

  CheckpointIndex index;
  std::vector<FileTensors> files;
  std::string text;
  together(comm, "save checkpoint", [&] {
    index = lay_out(meta, slices, options.file_bytes, token);
    text = index_text(index);
    if (static_cast<int64_t>(text.size()) > base::kMaxFileBytes) {
      fail("an index of {} bytes; at most {} are allowed", text.size(), base::kMaxFileBytes);
    }
    files = match(index, slices, directory);
    check_blocks(slices);
    if (lead) make_directory(directory);
  });
  check_same(comm, "save checkpoint", text);

  Unfinished unfinished;
  const std::string temporary = path_in(directory, temporary_index_name(token));
  if (lead) {
    for (const FileEntry& file : index.files) unfinished.add(path_in(directory, file.name));
    unfinished.add(temporary);
  }
  together(comm, "create checkpoint files", [&] { create_files(directory, index, comm); });
  TensorSums sums(files);
  together(comm, "write checkpoint files", [&] { write_pieces(directory, index, files, comm, sums); });
  sums.reduce(comm, "sum checkpoint");
  together(comm, "finish checkpoint", [&] {
    if (!lead) return;
    size_t number = 0;
    for (FileEntry& file : index.files) {
      for (TensorEntry& entry : file.tensors) entry.checksum = sums[number++];
    }
    commit(directory, index, temporary, unfinished);
  });
}

}  // namespace muster::engine
