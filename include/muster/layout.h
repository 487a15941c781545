/// \file
/// Which rank holds which elements of a tensor: meshes of ranks, and what each mesh axis does to the tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muster {

/// The most dimensions that a tensor may have.
inline constexpr int kMaxDims = 8;

/// The size of each dimension, outermost first. Tensors are row-major: the last dimension varies fastest.
using Shape = std::vector<int64_t>;

/// The product of the dimensions. Throws InvalidArgument if it exceeds 2^63 - 1 or a dimension is negative.
int64_t element_count(const Shape& shape);

/// One axis of a mesh: "fsdp" of 8 ranks.
struct MeshAxis {
  std::string name{};  ///< unique within the mesh
  int32_t size = 1;    ///< how many coordinates it has

  /// Compares all fields.
  bool operator==(const MeshAxis&) const = default;
};

/// A named grid of ranks. Meshes may share ranks, as a vision tower on one axis and a language model on two do.
struct Mesh {
  std::string name{};            ///< for errors and reports
  std::vector<MeshAxis> axes{};  ///< outermost first
  /// The rank at each grid position, row-major: the last axis varies fastest. Empty: 0, 1, 2, ...
  std::vector<int32_t> ranks{};

  /// How many grid positions there are: the product of the sizes of the axes.
  int32_t size() const;
  /// The rank at a grid position.
  int32_t rank_at(int32_t position) const { return ranks.empty() ? position : ranks[position]; }
  /// The coordinate of a grid position on one axis.
  int32_t coordinate(int32_t position, int axis) const;
};

/// What one mesh axis does to a tensor.
struct Placement {
  /// The kinds of placement.
  enum class Kind : uint8_t {
    kReplicate,  ///< every coordinate holds the same elements
    kShard,      ///< each coordinate holds a part of dimension `dim`
    /// Each coordinate holds a range of the row-major elements that kShard leaves (ZeRO, FSDP1, ragged shards).
    kFlat,
  };
  Kind kind = Kind::kReplicate;  ///< what the axis does
  int dim = 0;                   ///< kShard: the dimension that is cut
  /// kShard: `dim` is first cut into this many chunks; a coordinate holds its part of each chunk (torch's
  /// _StridedShard).
  int32_t split_factor = 1;
  /// The sizes of the parts, one per coordinate, in indices of `dim` (kShard) or elements (kFlat). Empty: contiguous
  /// parts of ceil(n / coordinates), the last ones shorter or empty, as torch.chunk cuts.
  std::vector<int64_t> sizes{};

  /// Every coordinate holds the same elements.
  static Placement replicate() { return {}; }
  /// Each coordinate holds a part of dimension `dim`, as torch.chunk cuts it.
  static Placement shard(int dim) { return {Kind::kShard, dim, 1, {}}; }
  /// Each coordinate holds a range of the row-major elements.
  static Placement flat() { return {Kind::kFlat, 0, 1, {}}; }

  /// Compares all fields.
  bool operator==(const Placement&) const = default;
};

/// How a tensor lies on a mesh.
struct Layout {
  int32_t mesh = 0;                     ///< index into Problem::meshes
  std::vector<Placement> placements{};  ///< one per mesh axis
  /// The order in which axes split, outermost first, as indices of mesh axes. Empty: mesh order. It matters only if two
  /// axes split the same dimension: FSDP over TP on dimension 0 splits by tp first, although fsdp comes first in the
  /// mesh.
  std::vector<int32_t> order{};

  /// Compares all fields.
  bool operator==(const Layout&) const = default;
};

}  // namespace muster
