// Refuses a model that does not fit into memory, before any of it is allocated.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "model_arguments.h"
#include "muster/plan.h"
#include "ranks.h"
#include "run/memory_need.h"

namespace muster::cli {

struct MemoryCheck {
  std::string_view command;
  std::string_view otherwise;  // what takes less if even one layer does not fit: "fewer ranks"
  const ModelArguments& model;
  const Ranks& ranks;
  // What each rank holds during the run, without scratch.
  std::function<run::MemoryNeed(const run::Workload&, int32_t rank)> held;
  // What rank 0 holds at another time, while the others hold nothing.
  std::function<run::MemoryNeed(const run::Workload&)> alone;
  // Per rank, the scratch that is allocated at once. Called only if the rest fits, since it has to plan.
  std::function<std::vector<int64_t>(const Problem&)> scratch;
};

// Throws InvalidArgument, which names a number of layers that fits if there is one.
void require_memory(const MemoryCheck& check, const run::Workload& workload);

// Per rank, the scratch of a plan. Plans that cannot be made take none.
std::vector<int64_t> plan_scratch(const Problem& problem, const PlanOptions& options);

}  // namespace muster::cli
