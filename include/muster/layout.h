// Where the elements of a tensor are: meshes of ranks, and what each mesh axis does to a tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muster {

inline constexpr int kMaxDims = 8;

using Shape = std::vector<int64_t>;

// Product of the dims; throws InvalidArgument past 2^63 - 1 or for a negative dim.
int64_t element_count(const Shape& shape);

struct MeshAxis {
  std::string name;
  int32_t size = 1;

  bool operator==(const MeshAxis&) const = default;
};

// A named grid of ranks. Several meshes may share ranks (a vision tower on a line, the language model on a square).
struct Mesh {
  std::string name;
  std::vector<MeshAxis> axes;
  // Rank at each grid position, row-major over the axes (the last axis varies fastest). Empty: 0, 1, 2, ...
  std::vector<int32_t> ranks;

  int32_t size() const;
  int32_t rank_at(int32_t position) const { return ranks.empty() ? position : ranks[position]; }
  // The coordinate on one axis of a grid position.
  int32_t coordinate(int32_t position, int axis) const;
};

// What one mesh axis does to a tensor.
struct Placement {
  enum class Kind : uint8_t {
    kReplicate,  // every coordinate holds the same elements
    kShard,      // dimension `dim` is cut over the coordinates
    kFlat,       // the row-major elements are cut into ranges, after every kShard (ZeRO, FSDP1, ragged shards)
  };
  Kind kind = Kind::kReplicate;
  int dim = 0;
  // kShard: cut `dim` into this many chunks first; a coordinate holds its piece of each (torch's _StridedShard).
  int32_t split_factor = 1;
  // Piece sizes, one a coordinate (kShard: indices of `dim`; kFlat: elements). Empty: contiguous pieces of
  // ceil(n / coordinates), the last ones shorter or empty, as torch chunks.
  std::vector<int64_t> sizes;

  static Placement replicate() { return {}; }
  static Placement shard(int dim) { return {Kind::kShard, dim, 1, {}}; }
  static Placement flat() { return {Kind::kFlat, 0, 1, {}}; }

  bool operator==(const Placement&) const = default;
};

struct Layout {
  int32_t mesh = 0;                   // index into Problem::meshes
  std::vector<Placement> placements;  // one a mesh axis
  // The order in which axes split, outermost first, as indices of mesh axes. Empty: mesh order. Matters only where
  // two axes split the same dim: FSDP over TP on dim 0 splits by tp first, although fsdp comes first in the mesh.
  std::vector<int32_t> order;

  bool operator==(const Layout&) const = default;
};

}  // namespace muster
