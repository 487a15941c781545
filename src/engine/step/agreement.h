// What ranks compare once, when an optimizer is constructed or reconnected. All ranks call these together. Where they
// disagree, every rank throws InvalidArgument naming what differs.
#pragma once

#include <span>

#include "engine/step/holdings.h"
#include "kernels/kernels.h"
#include "muster/communicator.h"
#include "muster/optimizer.h"

namespace muster::engine {

// Compares plans and options: ranks with different plans would wait for messages that are never sent.
void agree_on_plan(const Problem& problem, const Plan& plan, const OptimizerOptions& options,
                   std::span<const ParameterMemory> memory, Communicator& communicator);

// Compares the weights that replicas start from.
void agree_on_replicas(const Problem& problem, const Holdings& holdings, std::span<const ParameterMemory> memory,
                       kernels::Kernels& kernels, Communicator& communicator);

}  // namespace muster::engine
