// What a checkpoint says about itself: which tensors are in which files, and their checksums. docs/checkpoints.md has
// the format.
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

// What a checkpoint says beside its tensors.
struct CheckpointMeta {
  int64_t step = 0;                           // 0 or more
  std::map<std::string, std::string> values;  // UTF-8; the optimizer's to fill

  bool operator==(const CheckpointMeta&) const = default;
};

struct TensorEntry {
  StateInfo info;
  uint64_t checksum = 0;
};

// A safetensors file. Its tensors lie in it in this order, without holes.
struct FileEntry {
  std::string name;
  int64_t bytes = 0;
  std::vector<TensorEntry> tensors;
};

struct CheckpointIndex {
  CheckpointMeta meta;
  std::vector<FileEntry> files;
};

// Bytes of an element.
int64_t width(StateType type);
// "F32", as safetensors spells it.
std::string_view dtype_name(StateType type);
// Fails past 2^63 - 1 or for a negative dim.
int64_t tensor_bytes(const StateInfo& info);

// Into files of about `file_bytes`, at least one tensor each, in the order of the slices. `token` tells the files of
// this save from all others. Fails on names, values and shapes that an index cannot hold.
CheckpointIndex lay_out(const CheckpointMeta& meta, std::span<const StateShard> slices, int64_t file_bytes,
                        uint64_t token);

// Length and header of a safetensors file: all that is before its data. A function of the index, so that a reader can
// compare every byte.
std::string file_header(const FileEntry& file);

std::string index_text(const CheckpointIndex& index);
// `where` opens every message. Fails on anything that index_text would not write.
CheckpointIndex parse_index(std::string_view text, const std::string& where);
// Puts the opening brace and the checksum of what follows in front of the rest of an index.
std::string seal_index(std::string_view rest);

std::string temporary_index_name(uint64_t token);
// A file of some save, whole or not. Nobody else's is ever removed.
bool is_checkpoint_file(std::string_view name);

}  // namespace muster::engine
