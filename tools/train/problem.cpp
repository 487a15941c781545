#include "train/problem.h"

#include <fmt/format.h>

#include "muster/error.h"

namespace muster::train {
namespace {

Algorithm algorithm_of(const Recipe& recipe, Role role) {
  const bool matrix = role == Role::kAttention || role == Role::kMlp || role == Role::kGate;
  if (!matrix) return Algorithm::kAdamW;
  const bool left_out = recipe.normuon_on == NorMuonOn::kMlp && role != Role::kMlp;
  return recipe.algorithm == Algorithm::kNorMuon && left_out ? Algorithm::kMuon : recipe.algorithm;
}

}  // namespace

std::vector<Placement> placements(const std::vector<MeshAxis>& axes) {
  std::vector<Placement> out;
  for (const MeshAxis& axis : axes) {
    if (axis.name != "fsdp" && axis.name != "replicate") {
      throw InvalidArgument(fmt::format("\"{}\" is no axis of a training: those are fsdp and replicate", axis.name));
    }
    out.push_back(axis.name == "fsdp" ? Placement::shard(0) : Placement::replicate());
  }
  return out;
}

Problem make_problem(const Recipe& recipe, const WeightMap& map, const std::vector<MeshAxis>& axes) {
  Problem problem;
  problem.model = "gpt";
  problem.meshes = {{"ranks", axes, {}}};
  problem.wire = recipe.wire;
  problem.ranks = problem.meshes[0].size();
  const Layout layout{.placements = placements(axes), .order = {}};
  for (const Tensor& tensor : map.tensors) {
    Parameter parameter;
    parameter.name = tensor.name;
    parameter.shape = tensor.shape;
    parameter.dtype = recipe.dtype;
    parameter.layout = layout;
    parameter.algorithm = algorithm_of(recipe, tensor.role);
    parameter.matrices = tensor.matrices;
    parameter.output_dim = tensor.output_dim;
    // One a gate, although there are fewer of them than inputs.
    if (tensor.role == Role::kGate) parameter.norm_axis = NormAxis::kRows;
    problem.parameters.push_back(std::move(parameter));
  }
  return problem;
}

std::vector<Group> make_groups(const Recipe& recipe) {
  Group matrices;
  matrices.lr = recipe.lr;
  matrices.momentum = recipe.momentum;
  matrices.weight_decay = recipe.weight_decay;
  matrices.decay = recipe.decay;
  matrices.coefficients = recipe.coefficients;
  Group elements;
  elements.lr = recipe.adamw_lr;
  elements.weight_decay = recipe.weight_decay;
  elements.decay = recipe.decay;
  return {matrices, elements};
}

int32_t group_of(const Parameter& parameter) { return is_matrix_algorithm(parameter.algorithm) ? 0 : 1; }

}  // namespace muster::train
