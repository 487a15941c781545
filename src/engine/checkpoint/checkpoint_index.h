// The index of a checkpoint: which tensors are in which files, and their checksums.
// docs/reference/checkpoint-format.md has the format.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/state/state_shard.h"

namespace muster::engine {

inline constexpr std::string_view kIndexName = "muster.index.json";

struct CheckpointMeta {
  int64_t step = 0;                           // 0 or more
  std::map<std::string, std::string> values;  // UTF-8; for the optimizer's own use

  bool operator==(const CheckpointMeta&) const = default;
};

struct TensorEntry {
  StateInfo info;
  uint64_t checksum = 0;
};

// A safetensors file. It stores its tensors in this order, without holes.
struct FileEntry {
  std::string name;
  int64_t bytes = 0;
  std::vector<TensorEntry> tensors;
};

struct CheckpointIndex {
  CheckpointMeta meta;
  std::vector<FileEntry> files;
};

// The type as safetensors spells it: "F32".
std::string_view dtype_name(StateType type);
// Fails if a dim is negative or the size exceeds 2^63 - 1 bytes.
int64_t tensor_bytes(const StateInfo& info);

// Distributes tensors over files of about `file_bytes`, at least one tensor per file, in the order of the shards.
// `token` distinguishes the files of this save from all others. Fails on names, values and shapes that an index cannot
// hold.
CheckpointIndex lay_out(const CheckpointMeta& meta, std::span<const StateShard> shards, int64_t file_bytes,
                        uint64_t token);

// The bytes of a safetensors file before its data: the header and its length. They depend on the index only, so a
// reader can compare every byte.
std::string file_header(const FileEntry& file);

std::string index_text(const CheckpointIndex& index);
// `where` begins every error message. Fails on anything that index_text would not write.
CheckpointIndex parse_index(std::string_view text, const std::string& where);
// Prepends the opening brace and the checksum of `rest`, the remaining text of the index.
std::string seal_index(std::string_view rest);

std::string temporary_index_name(uint64_t token);
// True if this is the name of a file that some save wrote, complete or not. No other file is ever removed.
bool is_checkpoint_file(std::string_view name);

}  // namespace muster::engine
