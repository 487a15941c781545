// How one tensor is cut over one mesh: what every grid position holds, as runs.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "layout/run.h"
#include "muster/layout.h"

namespace muster::layout {

struct Interval {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t size() const { return end - begin; }
  bool operator==(const Interval&) const = default;
};

// Ascending, disjoint, none empty. Contiguous pieces have one interval; split_factor makes several.
using Intervals = std::vector<Interval>;
int64_t total_size(const Intervals& intervals);

class Partition {
 public:
  // The mesh is kept by reference. `name` is for messages. Throws InvalidArgument where the layout does not fit the
  // mesh or the shape, or cuts it into more pieces than any model has.
  Partition(const Mesh& mesh, const Layout& layout, const Shape& shape, std::string_view name);
  Partition(Mesh&& mesh, const Layout& layout, const Shape& shape, std::string_view name) = delete;

  const Shape& shape() const { return shape_; }
  int32_t positions() const { return positions_; }
  int32_t rank(int32_t position) const { return mesh_->rank_at(position); }
  int32_t position_of(int32_t rank) const;  // -1 if it is not on the mesh

  // Positions that hold the same elements differ in their replica alone.
  int32_t replicas() const { return replicas_; }
  int32_t replica(int32_t position) const { return mixed_radix(replicate_axes_, position); }
  int32_t first_replica(int32_t position) const;  // the position in replica 0 that holds the same elements

  // One interval of one of the pieces that a dimension is cut into; all of them, ascending. A piece may have several
  // (split_factor) or none (an empty shard).
  struct PieceInterval {
    Interval interval;
    int32_t piece = 0;
  };
  const std::vector<PieceInterval>& intervals(int dim) const { return dims_[dim].sorted; }
  int32_t piece(int dim, int32_t position) const { return mixed_radix(dims_[dim].axes, position); }

  // Some axis cuts ranges of elements; and nothing else is cut, so that these are ranges of the whole tensor.
  bool is_flat() const { return !flat_axes_.empty(); }
  bool is_only_flat() const;
  // The range of a position in the row-major order of the box of its pieces; all of it unless is_flat().
  Interval local_range(int32_t position) const;
  int64_t local_elements(int32_t position) const { return local_range(position).size(); }
  // The runs of a position: that range of that box. Offsets are in the position's local storage.
  std::vector<Run> shard(int32_t position) const;

  // All positions whose pieces are these, one index a dim, whatever their replica. Not for flat layouts.
  template <typename Visit>
  void for_each_position(const std::vector<int32_t>& piece_of_dim, Visit visit) const;

 private:
  struct Axis {
    int32_t stride = 1;  // of a grid position along this axis
    int32_t size = 1;
    std::vector<int64_t> ends;  // of explicit pieces, cumulated; empty: ceil chunks
    int32_t split_factor = 1;

    Interval piece(int64_t extent, int64_t coordinate) const;
  };
  struct Dim {
    std::vector<Axis> axes;  // outermost split first
    std::vector<Intervals> pieces;
    std::vector<PieceInterval> sorted;
  };

  static int32_t mixed_radix(const std::vector<Axis>& axes, int32_t position);
  void add_axis(const Placement& placement, Axis axis);
  void cut_dim(int d, std::string_view name);
  void check_flat_sizes(std::string_view name) const;
  int64_t box_elements(int32_t position) const;

  const Mesh* mesh_;
  int32_t positions_;
  Shape shape_;
  std::vector<Dim> dims_;
  std::vector<Axis> replicate_axes_;
  std::vector<Axis> flat_axes_;
  int32_t replicas_ = 1;
  int64_t most_runs_ = 1;  // of a shard, by the dims that are cut so far
};

template <typename Visit>
void Partition::for_each_position(const std::vector<int32_t>& piece_of_dim, Visit visit) const {
  std::vector<int32_t> positions{0};
  for (size_t d = 0; d < dims_.size(); ++d) {
    int32_t base = 0;
    int32_t rest = piece_of_dim[d];
    for (size_t a = dims_[d].axes.size(); a-- > 0;) {
      const Axis& axis = dims_[d].axes[a];
      base += rest % axis.size * axis.stride;
      rest /= axis.size;
    }
    positions[0] += base;
  }
  for (const Axis& axis : replicate_axes_) {
    const size_t before = positions.size();
    for (int32_t c = 1; c < axis.size; ++c) {
      for (size_t i = 0; i < before; ++i) positions.push_back(positions[i] + c * axis.stride);
    }
  }
  for (const int32_t position : positions) visit(position);
}

}  // namespace muster::layout
