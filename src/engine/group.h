// What ranks compare of a group.
#pragma once

#include <cstdint>

#include "muster/group.h"

namespace muster::engine {

// Equal for groups that do the same.
uint64_t fingerprint(const Group& group);

}  // namespace muster::engine
