#include "layout/partition.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "base/text.h"

namespace muster::layout {

namespace {

// Interval i of `count` contiguous chunks of ceil(n / count), as torch chunks.
Interval ceil_chunk(int64_t n, int64_t count, int64_t i) {
  const int64_t chunk = n / count + (n % count != 0);
  return {std::min(n, i * chunk), std::min(n, (i + 1) * chunk)};
}

// The part of `list` between two offsets into its concatenation.
Intervals slice(const Intervals& list, Interval range) {
  Intervals out;
  int64_t at = 0;
  for (const Interval& interval : list) {
    const int64_t lo = std::max(range.begin - at, int64_t{0});
    const int64_t hi = std::min(range.end - at, interval.size());
    if (lo < hi) out.push_back({interval.begin + lo, interval.begin + hi});
    at += interval.size();
  }
  return out;
}

void append(Intervals& list, const Intervals& more) {
  for (const Interval& interval : more) {
    if (!list.empty() && list.back().end == interval.begin) {
      list.back().end = interval.end;
    } else {
      list.push_back(interval);
    }
  }
}

// Pieces per dim and runs per shard. A layout with more is a mistake, not a model.
constexpr int64_t kMaxCuts = int64_t{1} << 22;
constexpr int64_t kMaxRuns = int64_t{1} << 12;

// The order in which the axes cut: that of the mesh, unless the layout gives another.
std::vector<int32_t> axis_order(const Mesh& mesh, const Layout& layout, std::string_view name) {
  std::vector<int32_t> order(mesh.axes.size());
  std::iota(order.begin(), order.end(), 0);
  if (layout.order.empty()) return order;
  if (!std::is_permutation(order.begin(), order.end(), layout.order.begin(), layout.order.end())) {
    base::fail("parameter '{}': order {} does not name each of the {} axes of mesh '{}' once", name,
               base::list_text(layout.order), order.size(), mesh.name);
  }
  return layout.order;
}

// `where` names the parameter and the axis.
void check_placement(const Placement& placement, size_t dims, std::string_view where) {
  const bool shards = placement.kind == Placement::Kind::kShard;
  if (placement.split_factor < 1 || (placement.split_factor > 1 && (!shards || !placement.sizes.empty()))) {
    base::fail("{} has split_factor {}{}", where, placement.split_factor, shards ? "" : " but shards no dim");
  }
  if (shards && (placement.dim < 0 || placement.dim >= static_cast<int>(dims))) {
    base::fail("{} shards dim {} of a tensor with {} dims", where, placement.dim, dims);
  }
  if (!placement.sizes.empty() && placement.kind == Placement::Kind::kReplicate) {
    base::fail("{} replicates, but has sizes", where);
  }
}

// Where each of the explicit pieces ends; empty if there are none.
std::vector<int64_t> piece_ends(const Placement& placement, int32_t ranks, std::string_view where) {
  if (!placement.sizes.empty() && static_cast<int64_t>(placement.sizes.size()) != ranks) {
    base::fail("{} of {} ranks has {} sizes", where, ranks, placement.sizes.size());
  }
  std::vector<int64_t> ends;
  int64_t end = 0;
  for (const int64_t size : placement.sizes) {
    if (size < 0) base::fail("{} has size {}", where, size);
    if (__builtin_add_overflow(end, size, &end)) base::fail("{} has sizes {}", where, base::list_text(placement.sizes));
    ends.push_back(end);
  }
  return ends;
}

}  // namespace

int64_t total_size(const Intervals& intervals) {
  int64_t n = 0;
  for (const Interval& interval : intervals) n += interval.size();
  return n;
}

int32_t Partition::mixed_radix(const std::vector<Axis>& axes, int32_t position) {
  int32_t value = 0;
  for (const Axis& axis : axes) value = value * axis.size + position / axis.stride % axis.size;
  return value;
}

Interval Partition::Axis::piece(int64_t extent, int64_t coordinate) const {
  if (ends.empty()) return ceil_chunk(extent, size, coordinate);
  return {coordinate == 0 ? 0 : ends[coordinate - 1], ends[coordinate]};
}

Partition::Partition(const Mesh& mesh, const Layout& layout, const Shape& shape, std::string_view name)
    : mesh_(&mesh), positions_(mesh.size()), shape_(shape), dims_(shape.size()) {
  if (layout.placements.size() != mesh.axes.size()) {
    base::fail("parameter '{}': {} placements on mesh '{}' of {} axes", name, layout.placements.size(), mesh.name,
               mesh.axes.size());
  }
  std::vector<int32_t> strides(mesh.axes.size(), 1);
  for (size_t a = mesh.axes.size(); a-- > 1;) strides[a - 1] = strides[a] * mesh.axes[a].size;
  for (const int32_t a : axis_order(mesh, layout, name)) {
    const Placement& placement = layout.placements[a];
    const std::string where = fmt::format("parameter '{}': axis '{}'", name, mesh.axes[a].name);
    check_placement(placement, shape.size(), where);
    const int32_t size = mesh.axes[a].size;
    add_axis(placement, {strides[a], size, piece_ends(placement, size, where), placement.split_factor});
  }
  for (size_t d = 0; d < dims_.size(); ++d) cut_dim(static_cast<int>(d), name);
  check_flat_sizes(name);
}

void Partition::add_axis(const Placement& placement, Axis axis) {
  switch (placement.kind) {
    case Placement::Kind::kReplicate:
      replicas_ *= axis.size;
      return replicate_axes_.push_back(std::move(axis));
    case Placement::Kind::kFlat:
      return flat_axes_.push_back(std::move(axis));
    case Placement::Kind::kShard:
      return dims_[placement.dim].axes.push_back(std::move(axis));
  }
}

int32_t Partition::position_of(int32_t rank) const {
  for (int32_t p = 0; p < positions_; ++p) {
    if (mesh_->rank_at(p) == rank) return p;
  }
  return -1;
}

void Partition::cut_dim(int d, std::string_view name) {
  Dim& dim = dims_[d];
  dim.pieces = {Intervals{{0, shape_[d]}}};
  int64_t cuts = 1;
  for (const Axis& axis : dim.axes) {
    cuts *= int64_t{axis.size} * axis.split_factor;
    if (cuts > kMaxCuts) {
      base::fail("parameter '{}': dim {} is cut into more than {} pieces (split_factor {})", name, d, kMaxCuts,
                 axis.split_factor);
    }
    std::vector<Intervals> next;
    for (const Intervals& piece : dim.pieces) {
      const int64_t n = total_size(piece);
      if (!axis.ends.empty() && axis.ends.back() != n) {
        base::fail("parameter '{}': sizes do not sum to the {} indices of dim {} they cut, but to {}", name, n, d,
                   axis.ends.back());
      }
      for (int32_t i = 0; i < axis.size; ++i) {
        Intervals mine;
        for (int32_t chunk = 0; chunk < axis.split_factor; ++chunk) {
          const Interval outer = ceil_chunk(n, axis.split_factor, chunk);
          const Interval inner = axis.piece(outer.size(), i);
          append(mine, slice(piece, {outer.begin + inner.begin, outer.begin + inner.end}));
        }
        next.push_back(std::move(mine));
      }
    }
    dim.pieces = std::move(next);
  }
  for (size_t piece = 0; piece < dim.pieces.size(); ++piece) {
    for (const Interval& interval : dim.pieces[piece]) dim.sorted.push_back({interval, static_cast<int32_t>(piece)});
  }
  std::sort(dim.sorted.begin(), dim.sorted.end(),
            [](const PieceInterval& a, const PieceInterval& b) { return a.interval.begin < b.interval.begin; });

  const auto longest = std::max_element(dim.pieces.begin(), dim.pieces.end(),
                                        [](const Intervals& a, const Intervals& b) { return a.size() < b.size(); });
  most_runs_ *= static_cast<int64_t>(std::max<size_t>(longest->size(), 1));
  if (most_runs_ > kMaxRuns) {
    base::fail("parameter '{}': split_factors make a shard of more than {} runs", name, kMaxRuns);
  }
}

void Partition::check_flat_sizes(std::string_view name) const {
  const bool explicit_sizes =
      std::any_of(flat_axes_.begin(), flat_axes_.end(), [](const Axis& axis) { return !axis.ends.empty(); });
  for (int32_t position = 0; explicit_sizes && position < positions_; ++position) {
    int64_t elements = box_elements(position);
    for (const Axis& axis : flat_axes_) {
      if (!axis.ends.empty() && axis.ends.back() != elements) {
        base::fail("parameter '{}': flat sizes do not sum to the {} elements they cut, but to {}", name, elements,
                   axis.ends.back());
      }
      elements = axis.piece(elements, position / axis.stride % axis.size).size();
    }
  }
}

int32_t Partition::first_replica(int32_t position) const {
  for (const Axis& axis : replicate_axes_) position -= position / axis.stride % axis.size * axis.stride;
  return position;
}

bool Partition::is_only_flat() const {
  return is_flat() && std::all_of(dims_.begin(), dims_.end(), [](const Dim& dim) { return dim.pieces.size() == 1; });
}

int64_t Partition::box_elements(int32_t position) const {
  int64_t n = 1;
  for (size_t d = 0; d < dims_.size(); ++d) {
    n *= total_size(dims_[d].pieces[piece(static_cast<int>(d), position)]);
  }
  return n;
}

Interval Partition::local_range(int32_t position) const {
  Interval range{0, box_elements(position)};
  for (const Axis& axis : flat_axes_) {
    const Interval inner = axis.piece(range.size(), position / axis.stride % axis.size);
    range = {range.begin + inner.begin, range.begin + inner.end};
  }
  return range;
}

std::vector<Run> Partition::shard(int32_t position) const {
  const int dims = static_cast<int>(shape_.size());
  std::vector<const Intervals*> mine;
  Shape local;
  for (int d = 0; d < dims; ++d) {
    mine.push_back(&dims_[d].pieces[piece(d, position)]);
    local.push_back(total_size(*mine.back()));
  }
  const Index strides = row_major_strides(local);
  const Interval range = local_range(position);
  if (range.size() == 0) return {};

  std::vector<Run> runs;
  for (const Box& box : flat_range(local, range.begin, range.end)) {
    // The local box, dim by dim: each interval it meets makes a run of its own.
    std::vector<Run> partial(1);
    partial[0].box.dims = dims;
    partial[0].offset = -range.begin;
    partial[0].stride = strides;
    for (int d = 0; d < dims; ++d) {
      std::vector<Run> next;
      for (const Run& run : partial) {
        int64_t at = 0;
        for (const Interval& interval : *mine[d]) {
          const int64_t lo = std::max(box.begin[d], at);
          const int64_t hi = std::min(box.end[d], at + interval.size());
          if (lo < hi) {
            Run longer = run;
            longer.box.begin[d] = interval.begin + lo - at;
            longer.box.end[d] = interval.begin + hi - at;
            longer.offset += lo * strides[d];
            next.push_back(longer);
          }
          at += interval.size();
        }
      }
      partial = std::move(next);
    }
    runs.insert(runs.end(), partial.begin(), partial.end());
  }
  return runs;
}

}  // namespace muster::layout
