#include "layout/partition.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "muster/error.h"

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

// Beyond this many intervals a layout is a mistake, not a model.
constexpr int64_t kMaxIntervals = int64_t{1} << 24;

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

Partition::Partition(const Mesh& mesh, const Layout& layout, const Shape& shape, std::string_view name)
    : shape_(shape), dims_(shape.size()) {
  const int axes = static_cast<int>(mesh.axes.size());
  if (static_cast<int>(layout.placements.size()) != axes) {
    throw InvalidArgument(fmt::format("parameter '{}': {} placements on mesh '{}' of {} axes", name,
                                      layout.placements.size(), mesh.name, axes));
  }
  std::vector<int32_t> order = layout.order;
  if (order.empty()) {
    order.resize(mesh.axes.size());
    std::iota(order.begin(), order.end(), 0);
  }
  std::vector<int32_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (int a = 0; a < static_cast<int>(sorted.size()) || a < axes; ++a) {
    if (static_cast<int>(sorted.size()) != axes || sorted[a] != a) {
      throw InvalidArgument(
          fmt::format("parameter '{}': order [{}] does not name each of the {} axes of mesh '{}' once", name,
                      fmt::join(order, ","), axes, mesh.name));
    }
  }

  ranks_.resize(mesh.size());
  for (int32_t p = 0; p < mesh.size(); ++p) ranks_[p] = mesh.rank_at(p);
  std::vector<int32_t> strides(axes, 1);
  for (int a = axes - 2; a >= 0; --a) strides[a] = strides[a + 1] * mesh.axes[a + 1].size;

  for (const int32_t a : order) {
    const Placement& placement = layout.placements[a];
    const Axis axis{strides[a], mesh.axes[a].size, placement.sizes, placement.split_factor};
    if (!axis.sizes.empty() && static_cast<int64_t>(axis.sizes.size()) != axis.size) {
      throw InvalidArgument(fmt::format("parameter '{}': {} sizes for axis '{}' of {} ranks", name, axis.sizes.size(),
                                        mesh.axes[a].name, axis.size));
    }
    for (const int64_t size : axis.sizes) {
      if (size < 0) {
        throw InvalidArgument(fmt::format("parameter '{}': size {} on axis '{}'", name, size, mesh.axes[a].name));
      }
    }
    switch (placement.kind) {
      case Placement::Kind::kReplicate:
        replicate_axes_.push_back(axis);
        replicas_ *= axis.size;
        break;
      case Placement::Kind::kFlat:
        flat_axes_.push_back(axis);
        break;
      case Placement::Kind::kShard:
        if (placement.dim < 0 || placement.dim >= static_cast<int>(shape.size())) {
          throw InvalidArgument(fmt::format("parameter '{}': axis '{}' shards dim {} of a tensor with {} dims", name,
                                            mesh.axes[a].name, placement.dim, shape.size()));
        }
        if (placement.split_factor < 1 || (placement.split_factor > 1 && !placement.sizes.empty())) {
          throw InvalidArgument(fmt::format("parameter '{}': axis '{}' has split_factor {}{}", name, mesh.axes[a].name,
                                            placement.split_factor, placement.sizes.empty() ? "" : " beside sizes"));
        }
        dims_[placement.dim].axes.push_back(axis);
        break;
    }
  }
  for (size_t d = 0; d < dims_.size(); ++d) cut_dim(dims_[d], shape[d], static_cast<int>(d), name);
  check_flat_sizes(name);
}

int32_t Partition::position_of(int32_t rank) const {
  const auto at = std::find(ranks_.begin(), ranks_.end(), rank);
  return at == ranks_.end() ? -1 : static_cast<int32_t>(at - ranks_.begin());
}

void Partition::cut_dim(Dim& dim, int64_t extent, int d, std::string_view name) {
  dim.pieces = {Intervals{{0, extent}}};
  for (const Axis& axis : dim.axes) {
    std::vector<Intervals> next;
    if (static_cast<int64_t>(dim.pieces.size()) * axis.size * axis.split_factor > kMaxIntervals) {
      throw InvalidArgument(fmt::format("parameter '{}': dim {} is cut into more than {} pieces (split_factor {})",
                                        name, d, kMaxIntervals, axis.split_factor));
    }
    for (const Intervals& piece : dim.pieces) {
      const int64_t n = total_size(piece);
      if (!axis.sizes.empty()) {
        int64_t sum = 0;
        for (const int64_t size : axis.sizes) {
          // Subtracting keeps the comparison clear of overflow.
          if (size > n - sum) {
            sum = -1;
            break;
          }
          next.push_back(slice(piece, {sum, sum + size}));
          sum += size;
        }
        if (sum != n) {
          throw InvalidArgument(
              fmt::format("parameter '{}': sizes [{}] do not sum to the {} indices of dim {} they cut", name,
                          fmt::join(axis.sizes, ","), n, d));
        }
        continue;
      }
      for (int32_t i = 0; i < axis.size; ++i) {
        Intervals mine;
        for (int32_t chunk = 0; chunk < axis.split_factor; ++chunk) {
          const Interval outer = ceil_chunk(n, axis.split_factor, chunk);
          const Interval inner = ceil_chunk(outer.size(), axis.size, i);
          append(mine, slice(piece, {outer.begin + inner.begin, outer.begin + inner.end}));
        }
        next.push_back(std::move(mine));
      }
    }
    dim.pieces = std::move(next);
  }
}

void Partition::check_flat_sizes(std::string_view name) const {
  const bool explicit_sizes =
      std::any_of(flat_axes_.begin(), flat_axes_.end(), [](const Axis& axis) { return !axis.sizes.empty(); });
  if (!explicit_sizes) return;
  for (int32_t position = 0; position < positions(); ++position) {
    Interval range{0, box_elements(position)};
    for (const Axis& axis : flat_axes_) {
      int64_t sum = 0;
      for (const int64_t size : axis.sizes) {
        if (size > range.size() - sum) {
          sum = -1;
          break;
        }
        sum += size;
      }
      if (!axis.sizes.empty() && sum != range.size()) {
        throw InvalidArgument(fmt::format("parameter '{}': flat sizes [{}] do not sum to the {} elements they cut",
                                          name, fmt::join(axis.sizes, ","), range.size()));
      }
      const int64_t at = position / axis.stride % axis.size;
      range = axis.sizes.empty() ? ceil_chunk(range.size(), axis.size, at) : Interval{0, axis.sizes[at]};
    }
  }
}

Interval Partition::flat_interval(int64_t elements, int32_t position) const {
  Interval range{0, elements};
  for (const Axis& axis : flat_axes_) {
    const int64_t at = position / axis.stride % axis.size;
    Interval inner = ceil_chunk(range.size(), axis.size, at);
    if (!axis.sizes.empty()) {
      inner.begin = std::accumulate(axis.sizes.begin(), axis.sizes.begin() + at, int64_t{0});
      inner.end = inner.begin + axis.sizes[at];
    }
    range = {range.begin + inner.begin, range.begin + inner.end};
  }
  return range;
}

int64_t Partition::box_elements(int32_t position) const {
  int64_t n = 1;
  for (size_t d = 0; d < dims_.size(); ++d) {
    n *= total_size(dims_[d].pieces[piece(static_cast<int>(d), position)]);
  }
  return n;
}

int64_t Partition::local_elements(int32_t position) const {
  const int64_t n = box_elements(position);
  return is_flat() ? flat_interval(n, position).size() : n;
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
  const Interval range = flat_interval(element_count(local), position);
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
