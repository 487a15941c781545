// Slow, obvious answers to where elements are, from explicit lists of indices. Shares no code with src/layout.
#pragma once

#include <cstdint>
#include <vector>

#include "muster/problem.h"

namespace muster::test {

// The flat indices that a grid position holds, in the order of its local storage.
std::vector<int64_t> shard_elements(const Mesh& mesh, const Layout& layout, const Shape& shape, int32_t position);

// The flat indices of every matrix of a parameter, each row-major.
std::vector<std::vector<int64_t>> matrix_elements(const Parameter& parameter);

}  // namespace muster::test
