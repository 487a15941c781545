#include "plan/strategies/builder.h"

#include <map>

namespace muster::plan {

std::vector<ShapeGroup> groups_by_shape(const Catalog& catalog) {
  std::map<std::pair<int32_t, int32_t>, size_t> index;  // kind and shape, in order of appearance
  std::vector<ShapeGroup> groups;
  std::vector<std::map<int32_t, size_t>> parts;  // by peers
  for (int32_t j = 0; j < catalog.matrix_count(); ++j) {
    const int32_t kind = catalog.kind_of(catalog.parameter_of(j));
    const auto [at, is_new] = index.emplace(std::pair{kind, catalog.class_at(j).shape}, groups.size());
    if (is_new) {
      groups.emplace_back();
      parts.emplace_back();
    }
    ShapeGroup& group = groups[at->second];
    const auto [part, is_new_part] = parts[at->second].emplace(catalog.holders_of(j).peers, group.parts.size());
    if (is_new_part) group.parts.emplace_back();
    group.parts[part->second].push_back(j);
  }
  return groups;
}

}  // namespace muster::plan
