// What ranks compare of a group.
#pragma once

#include <cstdint>
#include <vector>

#include "muster/group.h"

namespace muster::engine {

bool all_valid(const std::vector<Group>& groups);
// Equal for groups that do the same.
uint64_t fingerprint(const Group& group);
// Equal for groups that do the same at other rates (kernels::Rates).
uint64_t fingerprint_but_rates(const Group& group);

}  // namespace muster::engine
