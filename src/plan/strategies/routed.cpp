// A path per shape: locally where each replica holds the matrix whole, in rounds of one matrix per rank otherwise, and
// by gather and reduce-scatter for what is left over. The peer's process groups are those of the axis that shards, so
// that each replica does all of it for itself.
#include <map>

#include "base/text.h"
#include "plan/strategies/builder.h"
#include "plan/strategies/experts.h"

namespace muster::plan {

namespace {

// The peer stores experts row after row, so that its FSDP cuts through them where it has more ranks than experts; an
// expert then lies on a subgroup. Here that is a flat range.
bool lies_on_subgroup(const Problem& problem, const Parameter& p, size_t ranks) {
  if (p.shape.size() < 3 || p.matrices.flatten) return false;
  const Mesh& mesh = problem.meshes[p.layout.mesh];
  for (size_t a = 0; a < mesh.axes.size(); ++a) {
    if (p.layout.placements[a].kind != Placement::Kind::kFlat) continue;
    if (ranks < static_cast<size_t>(mesh.axes[a].size)) return true;
  }
  return false;
}

// The peer asserts that the experts divide over the axis that splits them first, where a second one splits them too.
void check_experts_divide(const Problem& problem, const Parameter& p) {
  const std::vector<MeshAxis> axes = expert_axes(problem, p);
  if (p.shape.size() < 3 || axes.size() < 2 || p.shape[0] % axes[0].size == 0) return;
  base::fail("strategy routed: parameter '{}': {} experts do not divide over {}={}", p.name, p.shape[0], axes[0].name,
             axes[0].size);
}

bool evenly_sharded(const layout::Partition& partition) {
  for (int32_t p = 1; p < partition.positions(); ++p) {
    if (partition.local_elements(p) != partition.local_elements(0)) return false;
  }
  return true;
}

// Experts that do not divide over the ranks that cut them are on none of the peer's paths for experts.
bool falls_back(const Problem& problem, const Parameter& p) {
  check_experts_divide(problem, p);
  const std::vector<MeshAxis> axes = expert_axes(problem, p);
  int64_t experts = p.shape[0];
  if (axes.size() > 1) experts /= axes[0].size;
  return !axes.empty() && experts % axes.back().size != 0;
}

// The waves of one group of matrices, made when they are first asked for.
class Rounds {
 public:
  explicit Rounds(Builder& builder) : builder_(builder) {}

  int32_t wave(size_t round, Transport transport) {
    const auto [at, is_new] = waves_.emplace(std::pair{round, transport}, 0);
    if (is_new) at->second = builder_.new_wave(transport);
    return at->second;
  }

 private:
  Builder& builder_;
  std::map<std::pair<size_t, Transport>, int32_t> waves_;
};

using Part = std::vector<int32_t>;

// Each replica does all of it: where one rank of each holds the matrix whole, it orthogonalizes it and nothing moves;
// else all holders gather it.
void place_locally(Builder& builder, Rounds& rounds, const Part& part, const HolderSet& set) {
  const size_t ranks = set.holders.size();
  const bool whole = set.of_replica() == 1;
  const int32_t wave = rounds.wave(0, whole ? Transport::kRagged : Transport::kGather);
  for (size_t i = 0; i < part.size(); ++i) {
    builder.place(part[i], i % ranks, wave);
    if (ranks > 1 && whole) builder.repeat(part[i]);
  }
}

// One matrix per rank and round, in each replica. The last round, if it is not full, is gathered and reduced, or else
// padded.
void place_in_rounds(Builder& builder, Rounds& rounds, const Part& part, const HolderSet& set, bool even) {
  const auto ranks = static_cast<size_t>(set.of_replica());
  for (size_t begin = 0; begin < part.size(); begin += ranks) {
    const bool full = begin + ranks <= part.size();
    const Transport transport = !even ? Transport::kPadded : full ? Transport::kRagged : Transport::kGatherReduce;
    const int32_t wave = rounds.wave(begin / ranks, transport);
    for (size_t slot = 0; slot < ranks; ++slot) {
      const int32_t owner = set.replicas == 1 ? set.holders[slot].rank : set.by_replica[slot];
      if (begin + slot < part.size()) {
        builder.place_on(part[begin + slot], owner, wave);
        if (set.replicas > 1) builder.repeat(part[begin + slot]);
      } else if (transport == Transport::kPadded) {
        builder.pad_on(part.back(), owner, wave);
      }
    }
  }
}

// One owner for all replicas, whose gradients it averages.
void place_averaged(Builder& builder, Rounds& rounds, const Part& part, const HolderSet& set, bool even) {
  const size_t ranks = set.holders.size();
  for (size_t begin = 0; begin < part.size(); begin += ranks) {
    const bool full = begin + ranks <= part.size();
    const Transport transport = full && even ? Transport::kRagged : Transport::kPadded;
    builder.spread(part, begin, 1, rounds.wave(begin / ranks, transport));
  }
}

}  // namespace

Plan build_routed(const Catalog& catalog, Padding padding) {
  const Problem& problem = catalog.problem();
  Builder builder(catalog, Strategy::kRouted, padding);
  const std::map<int32_t, std::vector<int32_t>> fallen =
      expert_kinds(catalog, [&](const Parameter& p) { return falls_back(problem, p); });
  for (const auto& [kind, parameters] : fallen) gather_experts(builder, catalog, parameters);
  for (const ShapeGroup& group : groups_by_shape(catalog)) {
    const int32_t example = catalog.parameter_of(group.parts[0][0]);
    const Parameter& parameter = problem.parameters[example];
    if (fallen.contains(catalog.kind_of(example))) continue;
    check_experts_divide(problem, parameter);
    const bool even = evenly_sharded(catalog.partition(example));
    Rounds rounds(builder);
    for (const Part& part : group.parts) {
      const HolderSet& set = catalog.holders_of(part[0]);
      const bool averages = catalog.class_at(part[0]).all_replicas;  // that takes one owner
      const bool local = set.of_replica() == 1 || lies_on_subgroup(problem, parameter, set.of_replica());
      if (set.holders.size() == 1 || (local && !averages)) {
        place_locally(builder, rounds, part, set);
      } else if (averages && set.replicas > 1) {
        place_averaged(builder, rounds, part, set, even);
      } else {
        place_in_rounds(builder, rounds, part, set, even);
      }
    }
  }
  return builder.take();
}

}  // namespace muster::plan
