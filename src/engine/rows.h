// Rows of values: copied, added up, and read from weights of any form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/block.h"
#include "muster/optimizer.h"

namespace muster::engine {

// Rows of a strided matrix to or from a dense copy; all in bytes but the rows.
void copy_rows(std::byte* to, int64_t to_stride, const std::byte* from, int64_t from_stride, int64_t rows,
               int64_t bytes);

void add_row(Dtype dtype, const void* from, int64_t count, float* to);

// The f32 values that the weights of a block stand for; `first` of the block is in the shard.
void read_weights(const ParameterMemory& memory, const Block& block, std::vector<float>& values);

}  // namespace muster::engine
