// A training on the disk: a directory with the optimizer's checkpoint in a folder of its own, and a file that names the
// folder and says what else is needed to go on.
//
// Saving writes into another folder and then replaces the file by a rename: whatever happens in between, the training
// that was there before, or the new one, is whole.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "train/trainer.h"

namespace muster::train {

// Where a training stands, besides weights and the optimizer's state.
struct Position {
  Recipe recipe;
  uint64_t text = 0;              // Corpus::hash
  std::vector<double> losses;     // of all steps so far
  std::vector<HeldOut> held_out;  // those computed so far
  std::string state;              // folder of the optimizer's checkpoint, in the directory
};

// Throws InvalidArgument with `where`, the key and its value.
Position parse_position(std::string_view text, const std::string& where);

// Throws InvalidArgument with the path.
Position read_position(const std::string& directory);

// All ranks together, on a file system they share; as save().
void make_folder(const std::string& directory, Communicator& communicator);
// Into a folder that is there.
void save(const std::string& directory, Position position, Trainer& trainer, Communicator& communicator);
// The trainer is of the position's recipe and text.
void load(const std::string& directory, const Position& position, Trainer& trainer);

}  // namespace muster::train
