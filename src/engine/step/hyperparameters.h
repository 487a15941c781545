// What ranks compare of hyperparameter groups, and which parameters take part in a step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "muster/group.h"
#include "muster/optimizer.h"

namespace muster::engine {

bool all_valid(std::span<const Group> groups);
// Equal for groups that do the same.
uint64_t fingerprint(const Group& group);
// Equal for groups that do the same at other rates (kernels::Rates).
uint64_t fingerprint_but_rates(const Group& group);

// Group::every divides the number of the step. Defined for invalid groups, too.
bool takes_part(const Group& group, int64_t step);
// One entry per parameter: its group takes part.
std::vector<bool> parameters_due(std::span<const Group> groups, std::span<const ParameterMemory> memory, int64_t step);

}  // namespace muster::engine
