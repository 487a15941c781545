// Names the ranks whose values differ, for errors.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "muster/problem.h"

namespace muster::engine {

// In each list, one word per rank.

// The ranks whose word is `value`.
std::vector<int64_t> ranks_with(std::span<const int64_t> words, int64_t value);
// "rank 2", "ranks 0, 1, 3"
std::string named(const std::vector<int64_t>& ranks);
// "4 on ranks 0, 1; 7 on rank 2", with meaning(word) as the number.
std::string by_value(std::span<const int64_t> words, const std::function<int64_t(int64_t)>& meaning);

// For every rank the first rank that stores the same elements of a parameter; -1 if it stores none.
std::vector<int32_t> first_replicas(const Problem& problem, const Parameter& parameter);
// ": those of ranks 2, 3 are not those of rank 0", by fingerprints. Empty if every rank's equals its first replica's.
std::string differing(const std::vector<int32_t>& first_replica, std::span<const int64_t> fingerprints);

}  // namespace muster::engine
