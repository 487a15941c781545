#include "engine/step/differing_ranks.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "layout/partition.h"

namespace muster::engine {

std::vector<int64_t> ranks_with(std::span<const int64_t> words, int64_t value) {
  std::vector<int64_t> out;
  for (size_t r = 0; r < words.size(); ++r) {
    if (words[r] == value) out.push_back(static_cast<int64_t>(r));
  }
  return out;
}

std::string named(const std::vector<int64_t>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

std::string by_value(std::span<const int64_t> words, const std::function<int64_t(int64_t)>& meaning) {
  std::string out;
  for (size_t r = 0; r < words.size(); ++r) {
    const std::vector<int64_t> alike = ranks_with(words, words[r]);
    if (alike[0] != static_cast<int64_t>(r)) continue;
    out += fmt::format("{}{} on {}", out.empty() ? "" : "; ", meaning(words[r]), named(alike));
  }
  return out;
}

std::vector<int32_t> first_replicas(const Problem& problem, const Parameter& parameter) {
  const layout::Partition partition(problem.meshes[parameter.layout.mesh], parameter.layout, parameter.shape,
                                    parameter.name);
  std::vector<int32_t> first(problem.ranks, -1);
  for (int32_t p = 0; p < partition.positions(); ++p) {
    if (partition.local_elements(p) > 0) first[partition.rank(p)] = partition.rank(partition.first_replica(p));
  }
  return first;
}

std::string differing(const std::vector<int32_t>& first_replica, std::span<const int64_t> fingerprints) {
  std::vector<int64_t> others;
  std::vector<int64_t> first;
  for (size_t rank = 0; rank < first_replica.size(); ++rank) {
    if (first_replica[rank] < 0 || fingerprints[rank] == fingerprints[first_replica[rank]]) continue;
    others.push_back(static_cast<int64_t>(rank));
    if (std::find(first.begin(), first.end(), first_replica[rank]) == first.end()) first.push_back(first_replica[rank]);
  }
  return others.empty() ? "" : fmt::format(": those of {} are not those of {}", named(others), named(first));
}

}  // namespace muster::engine
