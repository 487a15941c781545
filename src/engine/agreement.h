// What ranks agree upon before they change anything: plans, replicas, and what a step is about. Where they do not,
// every rank throws the same kind of error, naming what differs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "muster/communicator.h"
#include "muster/optimizer.h"
#include "plan/catalog.h"

namespace muster::engine {

// What this rank has of every parameter.
struct Holdings {
  Holdings(const plan::Catalog& catalog, int32_t rank);

  std::vector<int64_t> elements;
  std::vector<int32_t> replica;      // which of the replicas
  std::vector<int32_t> replicas;     // how many there are
  std::vector<uint64_t> shard_keys;  // equal for replicas

  bool any(size_t parameter) const { return elements[parameter] > 0; }
};

// Throws InvalidArgument, naming the parameter, unless there is memory of the right form for what is held.
void check_memory(const Problem& problem, const Holdings& holdings, std::span<const ParameterMemory> memory,
                  int32_t groups, int32_t rank);

// Ranks that plan different things would wait for messages nobody sends.
void agree_on_plan(const Problem& problem, const Plan& plan, const OptimizerOptions& options,
                   std::span<const ParameterMemory> memory, Communicator& communicator);

// Replicas start from the same weights.
void agree_on_replicas(const Problem& problem, const Holdings& holdings, std::span<const ParameterMemory> memory,
                       Communicator& communicator);

// One reduction: who refuses, who has other hyperparameters, and which gradients are there. Returns which parameters
// take part in step `number`.
std::vector<bool> agree_on_step(const Problem& problem, const Holdings& holdings,
                                std::span<const ParameterMemory> memory, const std::vector<Group>& groups,
                                std::span<void* const> gradients, const StepOptions& options, int64_t number,
                                Communicator& communicator);

}  // namespace muster::engine
