// Checkpoints: the state of all ranks as a directory of safetensors files with whole tensors, and an index.
//
// Every rank calls these functions with the same tensors in the same order, each with its own shards. All ranks share
// the file system of the directory. An error on one rank is thrown on all ranks: InvalidArgument, in one line, if the
// checkpoint is damaged or of another model, or if the file system refuses; CommError if a rank is lost.
// docs/howto/checkpoints-and-resharding.md says what is promised.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/checkpoint/checkpoint_index.h"
#include "engine/state/state_shard.h"
#include "muster/communicator.h"

namespace muster::engine {

struct SaveOptions {
  int64_t file_bytes = int64_t{4} << 30;  // of a file with several tensors, without its header
};

// Replaces the checkpoint in the directory once the new one is complete and on the disk. Until then, and after an
// error, the old one is untouched. Only one save may run per directory.
void save_checkpoint(const std::string& directory, const CheckpointMeta& meta, std::span<const StateShard> shards,
                     Communicator& comm, const SaveOptions& options = {});

// Removes the files of a checkpoint, and the directory if it holds nothing else. One rank calls it. What cannot be
// removed stays.
void remove_checkpoint(const std::string& directory);

// Fills all shards. The checkpoint must hold exactly these tensors. Everything is read and checked before anything is
// changed. Memory is one buffer of 1 MiB, so the files are read, and checked, a second time to fill the shards. If
// that fails because the files changed meanwhile, an Error that is not an InvalidArgument says so.
CheckpointMeta load_checkpoint(const std::string& directory, std::span<const StateShard> shards, Communicator& comm);

}  // namespace muster::engine
