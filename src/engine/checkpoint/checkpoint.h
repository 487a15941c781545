// Checkpoints: the state of all ranks as a directory of safetensors files with whole tensors, and an index.
//
// Every rank calls these with the same tensors in the same order, each with its own pieces; the directory is on a file
// system they share. What is wrong on one rank is thrown on all: an InvalidArgument with one line for a checkpoint that
// is damaged or another's and for what the file system refuses, CommError for a lost rank. docs/checkpoints.md says
// what is promised.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/checkpoint/checkpoint_index.h"
#include "engine/state/state_shard.h"
#include "muster/communicator.h"

namespace muster::engine {

struct SaveOptions {
  int64_t file_bytes = int64_t{4} << 30;  // of a file with more than one tensor, its header aside
};

// Replaces the checkpoint in the directory, if there is one, at the moment the new one is whole and on the disk: until
// then, and after an error, the old one is there untouched. One save in a directory at a time.
void save_checkpoint(const std::string& directory, const CheckpointMeta& meta, std::span<const StateShard> slices,
                     Communicator& comm, const SaveOptions& options = {});

// Fills all pieces. The checkpoint must hold exactly these tensors. Everything is read and checked before anything is
// changed; memory for it is a buffer of 1 MiB, so what is then filled in is read, and checked, a second time. Should
// that fail, because the files changed in between, an Error that is not an InvalidArgument says so.
CheckpointMeta load_checkpoint(const std::string& directory, std::span<const StateShard> slices, Communicator& comm);

}  // namespace muster::engine
