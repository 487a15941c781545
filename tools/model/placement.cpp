#include "model/placement.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"

namespace muster::model {

namespace {

// The mesh axes, outermost split first; those that `order` does not name come last, in mesh order.
std::vector<int32_t> split_order(const std::vector<std::string>& order, const Mesh& mesh) {
  std::vector<int32_t> result;
  for (const std::string& name : order) {
    const auto axis =
        std::find_if(mesh.axes.begin(), mesh.axes.end(), [&](const MeshAxis& a) { return a.name == name; });
    if (axis != mesh.axes.end()) result.push_back(static_cast<int32_t>(axis - mesh.axes.begin()));
  }
  for (int32_t axis = 0; axis < static_cast<int32_t>(mesh.axes.size()); ++axis) {
    if (std::find(result.begin(), result.end(), axis) == result.end()) result.push_back(axis);
  }
  return result;
}

}  // namespace

Layout resolve_layout(const Fields& fields, const Shape& shape, const Mesh& mesh, const std::string& where) {
  Layout layout;
  layout.placements.resize(mesh.axes.size());
  layout.order = split_order(fields.order.value_or(std::vector<std::string>()), mesh);
  Shape left = shape;  // the largest piece of each dim after the axes so far
  for (const int32_t index : layout.order) {
    const MeshAxis& axis = mesh.axes[static_cast<size_t>(index)];
    const auto found = fields.placements.find(axis.name);
    if (found == fields.placements.end()) {
      std::string known;
      for (const auto& [name, placements] : fields.placements) known += (known.empty() ? "" : ", ") + name;
      base::fail("{}: no placement for axis {} of mesh {}; the axes that the model knows: {}", where,
                 base::in_quotes(axis.name), base::in_quotes(mesh.name), known.empty() ? "none" : known);
    }
    const std::vector<Placement>& alternatives = found->second;
    for (const Placement& placement : alternatives) {
      if (placement.kind == Placement::Kind::kShard && placement.dim >= static_cast<int>(shape.size())) {
        base::fail("{}: axis {} shards dim {} of a tensor with {} dims", where, base::in_quotes(axis.name),
                   placement.dim, shape.size());
      }
    }
    auto chosen = std::find_if(alternatives.begin(), alternatives.end() - 1, [&](const Placement& placement) {
      return left[static_cast<size_t>(placement.dim)] >= axis.size;
    });
    layout.placements[static_cast<size_t>(index)] = *chosen;
    if (chosen->kind == Placement::Kind::kShard) {
      int64_t& extent = left[static_cast<size_t>(chosen->dim)];
      extent = chosen->sizes.empty() ? (extent - 1) / axis.size + 1
                                     : *std::max_element(chosen->sizes.begin(), chosen->sizes.end());
    }
  }
  // Mesh order is written as no order.
  if (std::is_sorted(layout.order.begin(), layout.order.end())) layout.order.clear();
  return layout;
}

}  // namespace muster::model
