#include "plan/strategies/experts.h"

#include <algorithm>
#include <set>

namespace muster::plan {

namespace {

bool has_experts(const Parameter& p) { return p.shape.size() >= 3 && !p.matrices.flatten; }

}  // namespace

std::vector<MeshAxis> expert_axes(const Problem& problem, const Parameter& p) {
  const Mesh& mesh = problem.meshes[p.layout.mesh];
  std::vector<MeshAxis> axes;
  for (size_t i = 0; i < mesh.axes.size(); ++i) {
    const size_t a = p.layout.order.empty() ? i : p.layout.order[i];
    const Placement& placement = p.layout.placements[a];
    if (placement.kind == Placement::Kind::kShard && placement.dim == 0) axes.push_back(mesh.axes[a]);
  }
  return axes;
}

std::map<int32_t, std::vector<int32_t>> expert_kinds(const Catalog& catalog,
                                                     const std::function<bool(const Parameter&)>& wanted) {
  const std::vector<Parameter>& parameters = catalog.problem().parameters;
  std::map<int32_t, std::vector<int32_t>> kinds;
  for (int32_t p = 0; p < static_cast<int32_t>(parameters.size()); ++p) {
    if (!is_matrix_algorithm(parameters[p].algorithm) || !has_experts(parameters[p])) continue;
    if (catalog.class_at(catalog.first_matrix(p)).all_replicas || !wanted(parameters[p])) continue;
    kinds[catalog.kind_of(p)].push_back(p);
  }
  return kinds;
}

void gather_experts(Builder& builder, const Catalog& catalog, const std::vector<int32_t>& parameters) {
  const int32_t count = catalog.grid(parameters[0]).count();
  const std::vector<MeshAxis> axes = expert_axes(catalog.problem(), catalog.problem().parameters[parameters[0]]);
  const int32_t tensors = axes.size() > 1 && count % axes[0].size == 0 ? axes[0].size : 1;
  std::vector<int32_t> waves;
  for (int32_t t = 0; t < tensors; ++t) {
    const int32_t begin = count / tensors * t;
    const int32_t end = begin + count / tensors;
    std::set<int32_t> holders;
    for (int32_t m = begin; m < end; ++m) {
      for (const Holder& h : builder.ranks_of(catalog.first_matrix(parameters[0]) + m)) holders.insert(h.rank);
    }
    const std::vector<int32_t> ranks(holders.begin(), holders.end());
    const size_t slots = ceil_div(parameters.size(), ranks.size()) * ranks.size();
    for (size_t slot = 0; slot < slots; ++slot) {
      const size_t round = slot / ranks.size();
      const int32_t owner = ranks[slot % ranks.size()];
      if (round == waves.size()) waves.push_back(builder.new_wave(Transport::kPadded));
      const int32_t first = catalog.first_matrix(parameters[std::min(slot, parameters.size() - 1)]);
      for (int32_t j = first + begin; j < first + end; ++j) {
        if (slot < parameters.size()) {
          builder.place_on(j, owner, waves[round]);
        } else {
          builder.pad_on(j, owner, waves[round]);
        }
      }
    }
  }
}

}  // namespace muster::plan
