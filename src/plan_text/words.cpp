#include "plan_text/words.h"

#include <algorithm>
#include <array>
#include <limits>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "plan_text/text.h"

namespace muster::plan_text {
namespace {

constexpr size_t kSizesShown = 4;

// In the order of their enumerators.
constexpr std::array<std::string_view, 3> kDtypes = {"f32", "bf16", "f16"};
constexpr std::array<std::string_view, 5> kAlgorithms = {"muon", "normuon", "adamw", "lion", "rule"};
constexpr std::array<std::string_view, 4> kTransports = {"ragged", "padded", "gather", "gather+reduce"};

template <size_t kCount, typename Enum>
std::string_view word_of(const std::array<std::string_view, kCount>& words, Enum value) {
  const auto index = static_cast<size_t>(value);
  return index < kCount ? words[index] : "?";
}

std::string sizes_words(const std::vector<int64_t>& sizes) {
  const auto last = sizes.begin() + static_cast<std::ptrdiff_t>(std::min(sizes.size(), kSizesShown));
  return fmt::format("{}{}", fmt::join(sizes.begin(), last, ", "), sizes.size() > kSizesShown ? ", …" : "");
}

std::string placement_words(const Placement& placement) {
  switch (placement.kind) {
    case Placement::Kind::kReplicate:
      return "replicate";
    case Placement::Kind::kFlat:
      return placement.sizes.empty() ? "flat" : fmt::format("flat of {}", sizes_words(placement.sizes));
    case Placement::Kind::kShard:
      break;
  }
  std::string text = fmt::format("shard({})", placement.dim);
  if (placement.split_factor > 1) text += fmt::format(" of each of {} chunks", placement.split_factor);
  if (!placement.sizes.empty()) text += fmt::format(" of {}", sizes_words(placement.sizes));
  return text;
}

}  // namespace

std::string_view word(Dtype dtype) { return word_of(kDtypes, dtype); }
std::string_view word(Algorithm algorithm) { return word_of(kAlgorithms, algorithm); }
std::string_view word(Transport transport) { return word_of(kTransports, transport); }

std::string shape_words(const Shape& shape) {
  return shape.empty() ? "scalar" : fmt::format("{}", fmt::join(shape, "×"));
}

std::string mesh_words(const Mesh& mesh) {
  std::string text;
  for (const MeshAxis& axis : mesh.axes) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", printable(axis.name), axis.size);
  }
  return text;
}

std::string layout_words(const Mesh& mesh, const Layout& layout) {
  std::string text;
  const size_t axes = std::min(mesh.axes.size(), layout.placements.size());
  for (size_t axis = 0; axis < axes; ++axis) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", printable(mesh.axes[axis].name),
                        placement_words(layout.placements[axis]));
  }
  // The order only matters, and is only said, where two axes cut the same dim.
  std::vector<std::string> names;
  std::set<std::pair<Placement::Kind, int>> cuts;
  for (const int32_t axis : layout.order) {
    const Placement& placement = layout.placements.at(static_cast<size_t>(axis));
    if (placement.kind == Placement::Kind::kReplicate) continue;
    names.push_back(printable(mesh.axes.at(static_cast<size_t>(axis)).name));
    cuts.emplace(placement.kind, placement.dim);
  }
  if (cuts.size() < names.size()) text += fmt::format(" (split by {})", fmt::join(names, ", then "));
  return text;
}

int64_t replica_count(const Mesh& mesh, const Layout& layout) {
  int64_t replicas = 1;
  const size_t axes = std::min(mesh.axes.size(), layout.placements.size());
  for (size_t axis = 0; axis < axes; ++axis) {
    if (layout.placements[axis].kind == Placement::Kind::kReplicate) replicas *= mesh.axes[axis].size;
  }
  return replicas;
}

int64_t total_elements(const Problem& problem) {
  int64_t total = 0;
  for (const Parameter& parameter : problem.parameters) {
    const int64_t count = element_count(parameter.shape);
    if (count > std::numeric_limits<int64_t>::max() - total) return std::numeric_limits<int64_t>::max();
    total += count;
  }
  return total;
}

}  // namespace muster::plan_text
