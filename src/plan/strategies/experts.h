// Experts that a system keeps in one tensor per layer, where a strategy treats them unlike other matrices.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "plan/strategies/builder.h"

namespace muster::plan {

// The axes that cut the experts of a parameter, in the order in which they cut.
std::vector<MeshAxis> expert_axes(const Problem& problem, const Parameter& p);

// The parameters with experts that `wanted` accepts, by kind. None where replicas average gradients and return weights:
// their owners must hold the weights.
std::map<int32_t, std::vector<int32_t>> expert_kinds(const Catalog& catalog,
                                                     const std::function<bool(const Parameter&)>& wanted);

// Places parameters of one kind as the systems do that gather all experts of a layer as one tensor: one layer for each
// of the ranks that share it, padded with layers of zeros. Where two axes cut the experts, the first makes groups of
// ranks with a tensor each.
void gather_experts(Builder& builder, const Catalog& catalog, const std::vector<int32_t>& parameters);

}  // namespace muster::plan
