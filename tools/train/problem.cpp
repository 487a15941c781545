#include "train/problem.h"

#include <fmt/format.h>

#include "base/text.h"
#include "muster/error.h"

namespace muster::train {
namespace {

Algorithm algorithm_of(const Recipe& recipe, Role role) {
  const bool mlp = role == Role::kUp || role == Role::kDown;
  const bool attention = role == Role::kAttention || role == Role::kOutput || role == Role::kGate;
  if (!mlp && !attention) return Algorithm::kAdamW;
  const bool left_out = recipe.normuon_on == NorMuonOn::kMlp && !mlp;
  return recipe.algorithm == Algorithm::kNorMuon && left_out ? Algorithm::kMuon : recipe.algorithm;
}

double multiplier(const Recipe& recipe, Role role) {
  switch (role) {
    case Role::kAttention:
    case Role::kOutput:
      return recipe.attention_lr_mul;
    case Role::kUp:
      return recipe.up_lr_mul;
    case Role::kDown:
      return recipe.down_lr_mul;
    default:
      return 1;
  }
}

// Which mean squares NorMuon keeps. With all of attention in one parameter, only the last block is the output
// projection: the four matrices are then rows of one view, because only blocks of rows have an axis of their own.
void choose_axes(const Recipe& recipe, Role role, Parameter& parameter) {
  if (role == Role::kGate) parameter.norm_axis = recipe.gate_axis;
  if (recipe.output_axis == NormAxis::kRows) return;  // what a square has anyway
  if (role == Role::kOutput) parameter.norm_axis = recipe.output_axis;
  if (role == Role::kAttention && !parameter.matrices.view.empty()) {
    const int64_t width = recipe.model.width;
    parameter.matrices.view = {4 * width, width};
    parameter.matrices.rows.assign(4, Block{width, {}, {}});
    parameter.matrices.rows.back().norm_axis = recipe.output_axis;
  }
}

}  // namespace

std::vector<Placement> placements(const std::vector<MeshAxis>& axes) {
  std::vector<Placement> out;
  for (const MeshAxis& axis : axes) {
    if (axis.name != "fsdp" && axis.name != "replicate") {
      throw InvalidArgument(
          fmt::format("{} is no axis of a training: those are fsdp and replicate", base::in_quotes(axis.name)));
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
    parameter.multiplier = multiplier(recipe, tensor.role);
    choose_axes(recipe, tensor.role, parameter);
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
  matrices.scale = recipe.step_scale;
  Group elements;
  elements.lr = recipe.adamw_lr;
  elements.weight_decay = recipe.weight_decay;
  elements.decay = recipe.decay;
  return {matrices, elements};
}

int32_t group_of(const Parameter& parameter) { return is_matrix_algorithm(parameter.algorithm) ? 0 : 1; }

}  // namespace muster::train
