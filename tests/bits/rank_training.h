// One rank of a training run on made-up weights and gradients.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cases.h"
#include "muster/communicator.h"

struct Run {
  int first_step = 0;
  int last_step = 0;
  std::string load;  // a checkpoint to start from; empty: none
  std::string save;  // where to write one, after save_after steps; empty: nowhere
  int save_after = 0;
};

// Weights, what their forms keep beside them, and the exported state, end to end.
std::vector<std::byte> train(const Case& c, const Run& run, muster::Communicator& communicator);
