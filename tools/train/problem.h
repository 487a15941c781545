// What the optimizer is told about the model: its parameters on a mesh, and the groups they follow.
#pragma once

#include <vector>

#include "muster/problem.h"
#include "train/recipe.h"

namespace muster::train {

// What the axes do to every tensor: "fsdp" cuts the first dim, "replicate" nothing. Throws InvalidArgument for others.
std::vector<Placement> placements(const std::vector<MeshAxis>& axes);

// Parameter p is tensor p of the map. No grad_sync: gradients come summed.
Problem make_problem(const Recipe& recipe, const WeightMap& map, const std::vector<MeshAxis>& axes);

// 0: Muon and NorMuon; 1: AdamW.
std::vector<Group> make_groups(const Recipe& recipe);
int32_t group_of(const Parameter& parameter);

}  // namespace muster::train
