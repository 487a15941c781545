#include "plan/normuon_statistics.h"

#include <algorithm>
#include <utility>

namespace muster::plan {

namespace {

// Lines end to end, matrix after matrix.
std::vector<int64_t> line_starts(const MatrixGrid& grid) {
  std::vector<int64_t> begin{0};
  for (int32_t i = 0; i < grid.count(); ++i) {
    const Matrix m = grid.at(i);
    begin.push_back(begin.back() + (m.normuon ? m.lines() : 0));
  }
  return begin;
}

// The parameter is read in its own shape, so that batch dimensions are its own.
bool keeps_batch(const Parameter& parameter) {
  return parameter.matrices.view.empty() && !(parameter.matrices.flatten && parameter.shape.size() > 2);
}

Shape statistics_shape(const Parameter& parameter, int64_t lines) {
  if (!keeps_batch(parameter)) return {lines};
  Shape shape(parameter.shape.begin(), parameter.shape.end() - 2);
  shape.push_back(lines / std::max<int64_t>(element_count(shape), 1));
  return shape;
}

// An axis that cuts a batch dimension cuts it here as it does there. One that cuts rows, columns or elements cuts the
// lines into chunks.
Layout statistics_layout(const Parameter& parameter) {
  Layout out{parameter.layout.mesh, {}, {}};
  const int last = keeps_batch(parameter) ? static_cast<int>(parameter.shape.size()) - 2 : 0;
  const auto cuts_batch = [&](const Placement& p) {
    return keeps_batch(parameter) && p.kind == Placement::Kind::kShard && p.dim < last;
  };
  const auto axes = static_cast<int32_t>(parameter.layout.placements.size());
  for (const Placement& placement : parameter.layout.placements) {
    const bool replicates = placement.kind == Placement::Kind::kReplicate;
    out.placements.push_back(replicates || cuts_batch(placement) ? placement : Placement::shard(last));
  }
  // Batch dimensions in the order of the parameter, the lines in that of the mesh.
  for (const int32_t a : parameter.layout.order) {
    if (cuts_batch(parameter.layout.placements[a])) out.order.push_back(a);
  }
  for (int32_t a = 0; !parameter.layout.order.empty() && a < axes; ++a) {
    if (!cuts_batch(parameter.layout.placements[a])) out.order.push_back(a);
  }
  return out;
}

}  // namespace

bool holders_keep_statistics(const Parameter& parameter, const MatrixGrid& grid) {
  return parameter.state_keeper == StateKeeper::kHolders && line_starts(grid).back() > 0;
}

NormuonStatistics::NormuonStatistics(const Mesh& mesh, const Parameter& parameter, const MatrixGrid& grid)
    : NormuonStatistics(mesh, parameter, line_starts(grid)) {}

NormuonStatistics::NormuonStatistics(const Mesh& mesh, const Parameter& parameter, std::vector<int64_t> begin)
    : begin_(std::move(begin)),
      partition_(mesh, plan::statistics_layout(parameter), statistics_shape(parameter, begin_.back()), parameter.name) {
  for (const Placement& placement : plan::statistics_layout(parameter).placements) {
    dims_.push_back(placement.kind == Placement::Kind::kReplicate ? -1 : placement.dim);
  }
}

layout::Box NormuonStatistics::box(int32_t matrix) const {
  layout::Box box = layout::whole(shape());
  const int last = box.dims - 1;
  const int64_t lines = shape()[last];
  int64_t batch = begin_[matrix] / lines;
  box.begin[last] = begin_[matrix] % lines;
  box.end[last] = box.begin[last] + begin_[matrix + 1] - begin_[matrix];
  for (int d = last; d-- > 0;) {
    box.begin[d] = batch % shape()[d];
    box.end[d] = box.begin[d] + 1;
    batch /= shape()[d];
  }
  return box;
}

NormuonStatistics::Part NormuonStatistics::part_of(int32_t matrix, int32_t position) const {
  if (position < 0 || begin_[matrix] == begin_[matrix + 1]) return {};
  const layout::Box whole = box(matrix);
  const int last = whole.dims - 1;
  for (const layout::Run& run : partition_.shard(position)) {
    const layout::Box common = layout::intersect(run.box, whole);
    if (common.empty()) continue;
    return {run.offset_of(common.begin), common.begin[last] - whole.begin[last], common.end[last] - common.begin[last]};
  }
  return {};
}

std::vector<NormuonStatistics::Keeper> NormuonStatistics::keepers(int32_t matrix) const {
  std::vector<Keeper> out;
  if (begin_[matrix] == begin_[matrix + 1]) return out;
  const layout::Box whole = box(matrix);
  const int last = whole.dims - 1;
  std::vector<int32_t> pieces(static_cast<size_t>(whole.dims));
  for (int d = 0; d < last; ++d) pieces[static_cast<size_t>(d)] = piece_at(d, whole.begin[d]);
  const auto& intervals = partition_.intervals(last);
  auto at = std::partition_point(intervals.begin(), intervals.end(),
                                 [&](const auto& part) { return part.interval.end <= whole.begin[last]; });
  for (; at != intervals.end() && at->interval.begin < whole.end[last]; ++at) {
    pieces[static_cast<size_t>(last)] = at->piece;
    const int64_t lines = std::min(at->interval.end, whole.end[last]) - std::max(at->interval.begin, whole.begin[last]);
    partition_.for_each_position(pieces, [&](int32_t position) { out.push_back({position, lines}); });
  }
  return out;
}

std::vector<int64_t> NormuonStatistics::keepers_key(int32_t matrix) const {
  const layout::Box whole = box(matrix);
  const int last = whole.dims - 1;
  std::vector<int64_t> key{whole.begin[last], whole.end[last]};
  for (int d = 0; d < last; ++d) key.push_back(piece_at(d, whole.begin[d]));
  return key;
}

int32_t NormuonStatistics::piece_at(int dim, int64_t index) const {
  const auto& intervals = partition_.intervals(dim);
  return std::partition_point(intervals.begin(), intervals.end(),
                              [&](const auto& part) { return part.interval.end <= index; })
      ->piece;
}

}  // namespace muster::plan

namespace muster {

StatisticsLayout statistics_layout(const Problem& problem, int32_t index, int32_t rank) {
  const Parameter& parameter = problem.parameters.at(static_cast<size_t>(index));
  if (!is_matrix_algorithm(parameter.algorithm)) return {};
  const plan::MatrixGrid grid(parameter);
  if (!plan::holders_keep_statistics(parameter, grid)) return {};
  const plan::NormuonStatistics statistics(problem.meshes.at(parameter.layout.mesh), parameter, grid);
  StatisticsLayout out{statistics.shape(), Shape(statistics.shape().size(), 0), statistics.dims()};
  const int32_t position = statistics.partition().position_of(rank);
  if (position < 0) return out;
  for (size_t d = 0; d < out.shape.size(); ++d) {
    const int32_t piece = statistics.partition().piece(static_cast<int>(d), position);
    for (const auto& part : statistics.partition().intervals(static_cast<int>(d))) {
      if (part.piece == piece) out.local_shape[d] += part.interval.size();
    }
  }
  return out;
}

}  // namespace muster
