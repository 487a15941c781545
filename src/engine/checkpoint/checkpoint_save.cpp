#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <random>
#include <set>
#include <unistd.h>
#include <utility>

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
  if (error) base::fail_system("create", directory, error);
  if (!made) return;
  const fs::path parent = fs::absolute(directory, error).lexically_normal().parent_path();
  if (!error) base::sync_directory(parent.string());
}

// Removes the files of a save that did not finish. Only rank 0 has them: it alone knows whether the index that names
// them came to be. Another rank that lost its connection at the last moment would remove files of a finished
// checkpoint.
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

// The ranks share out the files.
void create_files(const CheckpointFiles& files, const Communicator& comm) {
  for (auto f = static_cast<size_t>(comm.rank()); f < files.index.files.size(); f += static_cast<size_t>(comm.size())) {
    const FileEntry& entry = files.index.files[f];
    base::File file = base::File::create(path_in(files.directory, entry.name));
    file.resize(entry.bytes);
    const std::string header = file_header(entry);
    file.write_at(0, header.data(), static_cast<int64_t>(header.size()));
    file.finish();
  }
}

void write_blocks(const CheckpointFiles& files, const Communicator& comm, TensorSums& sums) {
  for_each_file(files, BlockChoice::kPrimary, comm, [&](size_t f) {
    // One file at a time: a large state has more files than a process may open.
    base::File file = base::File::open_to_write(path_in(files.directory, files.index.files[f].name));
    BlockWriter writer(file);
    for (const CheckpointTensor& tensor : files.tensors[f]) {
      uint64_t sum = 0;
      for (const StateBlock& block : tensor.shard->blocks) {
        if (chosen(block, BlockChoice::kPrimary)) sum += writer.write(tensor.place, block);
      }
      sums.set(tensor.number, sum);
    }
    writer.flush();
    file.finish();
  });
}

// Removes files of checkpoints and of interrupted saves, except those to keep. A file that cannot be removed does no
// harm.
void remove_files(const std::string& directory, const std::set<std::string>& keep) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<std::string> others;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (is_checkpoint_file(name) && !keep.contains(name)) others.push_back(name);
  }
  for (const std::string& name : others) ::unlink(path_in(directory, name).c_str());
}

void commit(const CheckpointFiles& files, const std::string& temporary, Unfinished& unfinished) {
  {
    const std::string text = index_text(files.index);
    base::File file = base::File::create(temporary);
    file.write_at(0, text.data(), static_cast<int64_t>(text.size()));
    file.finish();
  }
  // The names of the files must reach the disk before the index that lists them.
  base::sync_directory(files.directory);
  const std::string path = path_in(files.directory, kIndexName);
  if (std::rename(temporary.c_str(), path.c_str()) != 0) base::fail_system("write", path);
  unfinished.keep();
  base::sync_directory(files.directory);
  std::set<std::string> keep;
  for (const FileEntry& file : files.index.files) keep.insert(file.name);
  remove_files(files.directory, keep);
}

}  // namespace

void save_checkpoint(const std::string& directory, const CheckpointMeta& meta, std::span<const StateShard> shards,
                     Communicator& comm, const SaveOptions& options) {
  const bool lead = comm.rank() == 0;
  uint64_t token = 0;
  fail_together(comm, "name checkpoint", [&] { token = lead ? random_token() : 0; });
  comm.broadcast(&token, sizeof token, 0, "checkpoint name")->wait();

  CheckpointFiles files;
  std::string text;
  fail_together(comm, "save checkpoint", [&] {
    CheckpointIndex index = lay_out(meta, shards, options.file_bytes, token);
    text = index_text(index);
    if (static_cast<int64_t>(text.size()) > base::kMaxFileBytes) {
      fail("an index of {} bytes; at most {} are allowed", text.size(), base::kMaxFileBytes);
    }
    files = match_tensors(directory, std::move(index), shards);
    check_blocks(shards);
    if (lead) make_directory(directory);
  });
  check_same(comm, "save checkpoint", text);

  Unfinished unfinished;
  const std::string temporary = path_in(directory, temporary_index_name(token));
  if (lead) {
    for (const FileEntry& file : files.index.files) unfinished.add(path_in(directory, file.name));
    unfinished.add(temporary);
  }
  fail_together(comm, "create checkpoint files", [&] { create_files(files, comm); });
  TensorSums sums(files.tensors);
  fail_together(comm, "write checkpoint files", [&] { write_blocks(files, comm, sums); });
  sums.reduce(comm, "sum checkpoint");
  fail_together(comm, "finish checkpoint", [&] {
    if (!lead) return;
    size_t number = 0;
    for (FileEntry& file : files.index.files) {
      for (TensorEntry& entry : file.tensors) entry.checksum = sums[number++];
    }
    commit(files, temporary, unfinished);
  });
}

void remove_checkpoint(const std::string& directory) {
  ::unlink(path_in(directory, kIndexName).c_str());  // first: files without an index are no checkpoint
  remove_files(directory, {});
  ::rmdir(directory.c_str());  // fails if other files are there
}

}  // namespace muster::engine
