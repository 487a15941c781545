#include "plan_text/plan_report.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

#include "plan/catalog.h"
#include "plan_text/text.h"

namespace muster::plan_text {

std::vector<std::vector<ShapeCount>> count_shapes(const plan::Catalog& catalog, std::span<const int32_t> group_of,
                                                  int32_t groups) {
  std::map<std::tuple<int32_t, int64_t, int64_t>, int64_t> counts;  // by group, rows, columns
  for (size_t j = 0; j < group_of.size(); ++j) {
    if (group_of[j] < 0 || group_of[j] >= groups) continue;
    const auto index = static_cast<int32_t>(j);
    ++counts[{group_of[j], catalog.rows(index), catalog.columns(index)}];
  }
  std::vector<std::vector<ShapeCount>> result(static_cast<size_t>(std::max(groups, 0)));
  for (const auto& [key, count] : counts) {
    const auto& [group, rows, columns] = key;
    result[static_cast<size_t>(group)].push_back({rows, columns, count});
  }
  const auto weight = [](const ShapeCount& shape) {
    const double elements = static_cast<double>(shape.rows) * static_cast<double>(shape.columns);
    return std::tuple(elements * static_cast<double>(shape.count), shape.count, shape.rows, shape.columns);
  };
  for (auto& shapes : result) {
    std::sort(shapes.begin(), shapes.end(),
              [weight](const ShapeCount& a, const ShapeCount& b) { return weight(a) > weight(b); });
  }
  return result;
}

std::string shapes_text(std::span<const ShapeCount> shapes, size_t width) {
  std::string text;
  for (size_t i = 0; i < shapes.size(); ++i) {
    const ShapeCount& shape = shapes[i];
    const std::string_view separator = i == 0 ? "" : ", ";
    const std::string next = fmt::format("{}{}×{}×{}", separator, shape.count, shape.rows, shape.columns);
    // Every shape but the last must leave room for ", …" behind it.
    const size_t room = width - std::min(width, size_t{i + 1 == shapes.size() ? 0u : 3u});
    if (display_width(text) + display_width(next) > room)
      return truncated(fmt::format("{}{}…", text, separator), width);
    text += next;
  }
  return text;
}

std::string scratch_cap_text(int64_t scratch_cap, bool scratch_cap_raised) {
  if (scratch_cap == 0) return "no cap";
  return fmt::format("cap {}{}", bytes_text(scratch_cap),
                     scratch_cap_raised ? ": 1.5 times the least that this model needs" : "");
}

int64_t zero_matrix_count(const PlanSummary& summary) {
  return std::accumulate(summary.waves.begin(), summary.waves.end(), int64_t{0},
                         [](int64_t sum, const PlanSummary::WaveTotal& wave) { return sum + wave.zeros; });
}

int64_t repeated_matrix_count(const Plan& plan) {
  return std::count(plan.each_replica.begin(), plan.each_replica.end(), true);
}

std::vector<int32_t> ranks_by_load(const PlanSummary& summary) {
  std::vector<int32_t> order(summary.ranks.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&summary](int32_t a, int32_t b) {
    return summary.ranks[static_cast<size_t>(a)].total_ns() > summary.ranks[static_cast<size_t>(b)].total_ns();
  });
  return order;
}

}  // namespace muster::plan_text
