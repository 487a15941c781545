// Keys of maps: values as bytes, one after the other.
#pragma once

#include <cstdint>
#include <string>

#include "muster/problem.h"

namespace muster::plan {

inline void put(std::string& key, int64_t value) { key.append(reinterpret_cast<const char*>(&value), sizeof value); }

// Equal for parameters whose elements lie alike and that are read as the same matrices.
std::string kind_key(const Parameter& parameter);

}  // namespace muster::plan
