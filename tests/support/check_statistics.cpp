#include "support/check_statistics.h"

#include <set>

#include "support/violation.h"

namespace muster::test {

void StatisticsCheck::add(const plan::LineSegment& lines, Way way, bool in) {
  require(plan_.wave[lines.matrix] == way.wave, "the statistics of matrix {} move in wave {}", lines.matrix, way.wave);
  const int32_t holder = in ? way.from : way.to;
  const int32_t assembler = in ? way.to : way.from;
  const plan::NormuonStatistics* const statistics = catalog_.statistics(lines.parameter);
  require(statistics != nullptr, "parameter {} has no statistics that move", lines.parameter);
  const layout::Partition& partition = statistics->partition();
  const int32_t position = partition.position_of(holder);
  require(position >= 0, "rank {} keeps no statistics of matrix {}", holder, lines.matrix);
  for (int64_t i = 0; i < lines.part.count; ++i) {
    const int64_t place = lines.part.held + i;
    require(place < partition.local_elements(position), "line {} of the statistics of rank {}", place, holder);
    ++(in ? in_ : out_)[{lines.matrix, lines.part.line + i}][{holder, assembler}];
  }
}

void StatisticsCheck::check(int32_t j, const std::vector<int32_t>& orthogonalizers) {
  const plan::NormuonStatistics* const statistics = catalog_.statistics(catalog_.parameter_of(j));
  const plan::Matrix& m = catalog_.class_at(j).matrix;
  if (statistics == nullptr || !m.normuon) return;
  std::map<int64_t, std::set<int32_t>> keepers;  // by line
  for (int32_t position = 0; position < statistics->partition().positions(); ++position) {
    const plan::NormuonStatistics::Part part = statistics->part_of(catalog_.index_in_parameter(j), position);
    for (int64_t i = 0; i < part.count; ++i) {
      keepers[part.line + i].insert(statistics->partition().rank(position));
    }
  }
  for (int64_t line = 0; line < m.lines(); ++line) {
    std::map<int32_t, int32_t> arrived;  // by assembler
    for (const auto& [pair, count] : in_[{j, line}]) arrived[pair.second] += count;
    require(arrived.contains(plan_.owner[j]), "line {} of matrix {} does not reach its owner", line, j);
    for (const auto& [rank, count] : arrived) {
      require(count == 1, "line {} of matrix {} reaches rank {} {} times", line, j, rank, count);
    }
    for (const int32_t rank : orthogonalizers) {
      require(arrived.contains(rank), "line {} of matrix {} does not reach rank {}", line, j, rank);
    }
    std::map<int32_t, int32_t> returned;  // by keeper
    for (const auto& [pair, count] : out_[{j, line}]) {
      require(arrived.contains(pair.second), "line {} of matrix {} comes back from rank {}", line, j, pair.second);
      returned[pair.first] += count;
    }
    require(returned.size() == keepers[line].size(), "line {} of matrix {} returns to {} of {} ranks", line, j,
            returned.size(), keepers[line].size());
    for (const auto& [rank, count] : returned) {
      require(count == 1 && keepers[line].contains(rank), "line {} of matrix {} returns to rank {} {} times", line, j,
              rank, count);
    }
  }
}

}  // namespace muster::test
