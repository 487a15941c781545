// The state that a rule declares for its matrices: where its entries lie, and their shapes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "muster/layout.h"
#include "muster/optimizer.h"

namespace muster::engine {

// The f32 array of an entry, of one matrix.
Shape entry_shape(RuleStateShape shape, int64_t rows, int64_t columns);

// The entries of one matrix, end to end.
struct RuleStateLayout {
  std::vector<int64_t> first;  // element, per entry
  int64_t elements = 0;        // of all entries: the next matrix of a batch follows
};
RuleStateLayout rule_state_layout(std::span<const RuleState> entries, int64_t rows, int64_t columns);

// Per parameter, the entries that its rule declares; none for other parameters. Every rule that is needed is there.
std::vector<std::vector<RuleState>> rule_entries(const Problem& problem, const OptimizerOptions& options,
                                                 std::span<const ParameterMemory> memory);

}  // namespace muster::engine
