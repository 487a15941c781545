// All that decides what is learnt, to the bit: whatever is not in here, such as the number of ranks, changes no loss.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "muster/group.h"
#include "muster/optimizer.h"
#include "train/model.h"
#include "train/schedule.h"

namespace muster::train {

enum class NorMuonOn : uint8_t { kAll, kMlp };  // the others get Muon

struct Recipe {
  ModelConfig model;    // its vocabulary is the text's
  uint64_t seed = 1;    // of the first weights and the batches
  int64_t steps = 200;  // in which the schedule goes from its first rate to its last
  int64_t batch = 32;   // sequences of a step
  // The batch is cut into these. A slot is computed by one thread, and gradients are added in the order of the slots.
  int64_t slots = 8;

  Algorithm algorithm = Algorithm::kNorMuon;  // of the matrices in the layers; all else has AdamW
  NorMuonOn normuon_on = NorMuonOn::kAll;
  NormAxis gate_axis = NormAxis::kRows;    // of NorMuon for gates: a row is a gate
  NormAxis output_axis = NormAxis::kRows;  // of NorMuon for attention's output projection: a column is an input
  double lr = 0.04;                        // of the matrices, at first: the schedule says how it falls
  double adamw_lr = 0.006;                 // of all that has AdamW
  Schedule schedule;                       // of both
  StepScale step_scale = StepScale::kJordan;
  double attention_lr_mul = 1;  // times the rate of attention's matrices, gates left out
  double up_lr_mul = 1;         // of the MLP's first matrices
  double down_lr_mul = 1;       // of its second
  double momentum = 0.95;
  double weight_decay = 0.01;
  Decay decay = Decay::kCautious;
  Coefficients coefficients = muster::coefficients("polar_express");
  Dtype wire = Dtype::kBf16;
  Dtype dtype = Dtype::kF32;
  WeightForm bf16_weights = WeightForm::kBf16Master;  // how weights in bf16 are kept

  int64_t all_steps() const { return steps + schedule.extension; }
  WeightForm form() const { return dtype == Dtype::kF32 ? WeightForm::kF32 : bf16_weights; }
};

// One value of a recipe as text: a flag of the command, and a line of a checkpoint.
struct RecipeField {
  std::string_view name;
  std::string_view values;  // what they look like: "N"
  std::string_view help;
  std::function<std::string(const Recipe&)> get;
  std::function<void(Recipe&, std::string_view)> set;  // throws InvalidArgument with the text, without the name
  int since = 1;  // version of the first checkpoint with it; older trainings have its default
};
std::span<const RecipeField> recipe_fields();

// Throws InvalidArgument for values that do not go together, naming the first as "--batch".
void validate(const Recipe& recipe);

}  // namespace muster::train
