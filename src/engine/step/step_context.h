// What the parts of a step share, and what a step is asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "engine/state/state.h"
#include "engine/step/holdings.h"
#include "engine/step/programs.h"
#include "engine/step/row_scalings.h"
#include "engine/step/step_timer.h"
#include "kernels/async_device.h"
#include "kernels/kernels.h"
#include "muster/communicator.h"
#include "muster/optimizer.h"
#include "plan/catalog.h"

namespace muster::engine {

using Gradients = std::span<void* const>;

// How a rank reaches the others.
struct Link {
  Communicator* host = nullptr;
  StreamCommunicator* stream = nullptr;  // exchanges of a device
  bool through_host = false;             // `stream` copies messages through host memory and waits for them

  bool alone() const { return host->size() == 1; }
  // True if a call on `stream` returns only after other ranks have made theirs.
  bool waits_for_peers() const { return through_host && !alone(); }
};

// The optimizer owns all of it. `link` changes when the optimizer is reconnected, `memory` when parameters are moved.
struct StepContext {
  const plan::Catalog& catalog;
  const Problem& problem;
  const Plan& plan;
  const Holdings& holdings;
  std::span<const ParameterMemory> memory;
  kernels::Kernels& kernels;
  kernels::AsyncDevice* device;  // null: calls of `kernels` return when their work is done
  State& state;
  Programs& programs;
  const RowScalings& row_scalings;
  StepTimer& timer;
  const Link& link;
  std::span<const std::shared_ptr<Rule>> rules{};  // per group
};

// A step as one rank's caller asks for it.
struct StepRequest {
  int64_t number = 1;
  Gradients gradients{};
  std::span<const Group> groups{};  // hyperparameters; they do not change while the step runs
  StepOptions options{};
  // The step is captured or replayed on a device. All ranks do so or none, because NCCL cannot mix the two.
  bool captured = false;
};

}  // namespace muster::engine
