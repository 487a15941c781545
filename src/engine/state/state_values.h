// Which values state may hold. An import or a load checks them before it changes anything.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "muster/optimizer.h"

namespace muster::engine {

// Names the first element that the tensor cannot have: a counter below 0 or above 2^53, or a negative mean of squares,
// whose root is NaN. Empty if there is none. `data` has some elements of the tensor.
std::string refused_value(const StateInfo& info, std::span<const std::byte> data);

}  // namespace muster::engine
