// What training_bits trains: layouts, strategies, waves, forms of weights, hyperparameters and gradients that vary.
#pragma once

#include <string>
#include <vector>

#include "muster/optimizer.h"

struct Case {
  std::string name;
  muster::Problem problem;
  muster::OptimizerOptions options;
  muster::StepOptions step;
  muster::WeightForm form = muster::WeightForm::kF32;  // of matrices; the others are f32
  bool missing = false;                                // some gradients are not there
  bool holders = false;                                // the caller keeps the state
};

std::vector<Case> all_cases();
// A few of them, for a GPU.
std::vector<Case> gpu_cases();
