#include "plan/strategies/strategies.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "base/int128.h"
#include "muster/error.h"

namespace muster::plan {

namespace {

// Matrices of one shape, layout and dtype; those on the same ranks make a part. Parts run side by side.
struct Group {
  std::vector<std::vector<int32_t>> parts;
};

std::vector<Group> groups_by_shape(const Catalog& catalog) {
  std::map<std::pair<int32_t, int32_t>, size_t> index;  // kind and shape, in order of appearance
  std::vector<Group> groups;
  std::vector<std::map<int32_t, size_t>> parts;  // by peers
  for (int32_t j = 0; j < catalog.matrix_count(); ++j) {
    const int32_t kind = catalog.kind_of(catalog.parameter_of(j));
    const auto [at, fresh] = index.emplace(std::pair{kind, catalog.class_at(j).shape}, groups.size());
    if (fresh) {
      groups.emplace_back();
      parts.emplace_back();
    }
    Group& group = groups[at->second];
    const auto [part, first] = parts[at->second].emplace(catalog.holders_of(j).peers, group.parts.size());
    if (first) group.parts.emplace_back();
    group.parts[part->second].push_back(j);
  }
  return groups;
}

class Builder {
 public:
  Builder(const Catalog& catalog, Strategy strategy, Padding padding = Padding::kZeros)
      : catalog_(catalog), padding_(padding) {
    plan_.strategy = strategy;
    plan_.elementwise = ElementwiseOrder::kFirst;  // peers do it in a call of its own; here it rides on the first round
    plan_.owner.assign(catalog.matrix_count(), 0);
    plan_.wave.assign(catalog.matrix_count(), 0);
  }

  int32_t new_wave(Transport transport) {
    plan_.waves.push_back({transport, {}});
    return static_cast<int32_t>(plan_.waves.size()) - 1;
  }

  const std::vector<Holder>& ranks_of(int32_t j) const { return catalog_.holders_of(j).holders; }

  void place_on(int32_t j, int32_t rank, int32_t wave) {
    plan_.owner[j] = rank;
    plan_.wave[j] = wave;
  }
  void place(int32_t j, size_t slot, int32_t wave) { place_on(j, ranks_of(j)[slot].rank, wave); }

  // In every replica.
  void repeat(int32_t j) {
    plan_.each_replica.resize(plan_.owner.size());
    plan_.each_replica[j] = true;
  }

  void pad_on(int32_t like, int32_t rank, int32_t wave) {
    if (padding_ == Padding::kZeros) plan_.waves[wave].zeros.push_back({like, rank});
  }
  void pad(int32_t like, size_t slot, int32_t wave) { pad_on(like, ranks_of(like)[slot].rank, wave); }

  // `each` consecutive matrices of a part for every rank, and zero matrices up to the last one.
  void spread(const std::vector<int32_t>& part, size_t begin, size_t each, int32_t wave) {
    const size_t ranks = ranks_of(part[0]).size();
    for (size_t slot = 0; slot < each * ranks; ++slot) {
      if (begin + slot < part.size()) {
        place(part[begin + slot], slot / each, wave);
      } else if (ranks > 1) {
        pad(part.back(), slot / each, wave);
      }
    }
  }

  Plan take() {
    if (plan_.waves.empty()) new_wave(Transport::kRagged);
    return std::move(plan_);
  }

 private:
  const Catalog& catalog_;
  const Padding padding_;
  Plan plan_;
};

size_t ceil_div(size_t a, size_t b) { return (a + b - 1) / b; }

// The axes that cut the experts of a parameter, the first to do so first.
std::vector<MeshAxis> expert_axes(const Problem& problem, const Parameter& p) {
  const Mesh& mesh = problem.meshes[p.layout.mesh];
  std::vector<MeshAxis> axes;
  for (size_t i = 0; i < mesh.axes.size(); ++i) {
    const size_t a = p.layout.order.empty() ? i : p.layout.order[i];
    const Placement& placement = p.layout.placements[a];
    if (placement.kind == Placement::Kind::kShard && placement.dim == 0) axes.push_back(mesh.axes[a]);
  }
  return axes;
}

bool has_experts(const Parameter& p) { return p.shape.size() >= 3 && !p.matrices.flatten; }

// The peers keep all experts of a layer in one tensor, and gather it as one: a layer for each of the ranks that share
// it, padded with layers of zeros. Where two axes cut the experts, the first makes groups of ranks with a tensor each.
void gather_experts(Builder& builder, const Catalog& catalog, const std::vector<int32_t>& parameters) {
  const int32_t count = catalog.grid(parameters[0]).count();
  const std::vector<MeshAxis> axes = expert_axes(catalog.problem(), catalog.problem().parameters[parameters[0]]);
  const int32_t tensors = axes.size() > 1 && count % axes[0].size == 0 ? axes[0].size : 1;
  std::vector<int32_t> waves;
  for (int32_t t = 0; t < tensors; ++t) {
    const int32_t begin = count / tensors * t;
    const int32_t end = begin + count / tensors;
    std::set<int32_t> holders;
    for (int32_t m = begin; m < end; ++m) {
      for (const Holder& h : builder.ranks_of(catalog.first_matrix(parameters[0]) + m)) holders.insert(h.rank);
    }
    const std::vector<int32_t> ranks(holders.begin(), holders.end());
    const size_t slots = ceil_div(parameters.size(), ranks.size()) * ranks.size();
    for (size_t slot = 0; slot < slots; ++slot) {
      const size_t round = slot / ranks.size();
      const int32_t owner = ranks[slot % ranks.size()];
      if (round == waves.size()) waves.push_back(builder.new_wave(Transport::kPadded));
      const int32_t first = catalog.first_matrix(parameters[std::min(slot, parameters.size() - 1)]);
      for (int32_t j = first + begin; j < first + end; ++j) {
        if (slot < parameters.size()) {
          builder.place_on(j, owner, waves[round]);
        } else {
          builder.pad_on(j, owner, waves[round]);
        }
      }
    }
  }
}

// By kind, the parameters with experts that `wanted` chooses. Who averages gradients returns weights, and must hold
// them.
template <typename Wanted>
std::map<int32_t, std::vector<int32_t>> expert_kinds(const Catalog& catalog, Wanted wanted) {
  const std::vector<Parameter>& parameters = catalog.problem().parameters;
  std::map<int32_t, std::vector<int32_t>> kinds;
  for (int32_t p = 0; p < static_cast<int32_t>(parameters.size()); ++p) {
    if (!is_matrix_algorithm(parameters[p].algorithm) || !has_experts(parameters[p])) continue;
    if (catalog.class_at(catalog.first_matrix(p)).all_replicas || !wanted(parameters[p])) continue;
    kinds[catalog.kind_of(p)].push_back(p);
  }
  return kinds;
}

}  // namespace

void check_traffic(const Catalog& catalog, const Plan& plan) {
  constexpr int64_t kMostElements = int64_t{1} << 52;
  base::Int128 elements = 0;
  auto add = [&](int32_t j, Transport transport) {
    const HolderSet& set = catalog.holders_of(j);
    const bool gathers = transport == Transport::kGather || transport == Transport::kGatherReduce;
    elements += base::Int128{static_cast<int64_t>(set.holders.size())} *
                (gathers ? catalog.class_at(j).matrix.elements() : set.largest);
  };
  for (int32_t j = 0; j < catalog.matrix_count(); ++j) {
    const Transport transport = plan.waves[plan.wave[j]].transport;
    if (transport != Transport::kRagged) add(j, transport);
  }
  for (const Wave& wave : plan.waves) {
    for (const ZeroMatrix& zero : wave.zeros) add(zero.like, wave.transport);
  }
  if (elements > kMostElements) {
    throw InvalidArgument(fmt::format("strategy {}: padding and gathering past 2^52 elements", name(plan.strategy)));
  }
}

Plan build_per_matrix(const Catalog& catalog) {
  Builder builder(catalog, Strategy::kPerMatrix);
  std::map<int32_t, size_t> turn;  // by peers
  for (int32_t j = 0; j < catalog.matrix_count(); ++j) {
    const size_t slot = turn[catalog.holders_of(j).peers]++ % builder.ranks_of(j).size();
    builder.place(j, slot, builder.new_wave(Transport::kRagged));
  }
  return builder.take();
}

Plan build_chunked(const Catalog& catalog, Padding padding) {
  Builder builder(catalog, Strategy::kChunked, padding);
  const std::map<int32_t, std::vector<int32_t>> experts = expert_kinds(catalog, [](const Parameter&) { return true; });
  for (const auto& [kind, parameters] : experts) gather_experts(builder, catalog, parameters);
  for (const Group& group : groups_by_shape(catalog)) {
    if (experts.contains(catalog.kind_of(catalog.parameter_of(group.parts[0][0])))) continue;
    std::vector<int32_t> waves;
    for (const std::vector<int32_t>& part : group.parts) {
      const size_t ranks = builder.ranks_of(part[0]).size();
      // What a rank holds whole needs no rounds.
      const size_t each = ranks == 1 ? part.size() : 1;
      for (size_t round = 0; round < ceil_div(part.size(), each * ranks); ++round) {
        if (round == waves.size()) waves.push_back(builder.new_wave(Transport::kPadded));
        builder.spread(part, round * each * ranks, each, waves[round]);
      }
    }
  }
  return builder.take();
}

Plan build_megabatch(const Catalog& catalog, Padding padding) {
  Builder builder(catalog, Strategy::kMegabatch, padding);
  for (const Group& group : groups_by_shape(catalog)) {
    const int32_t wave = builder.new_wave(Transport::kPadded);
    for (const std::vector<int32_t>& part : group.parts) {
      builder.spread(part, 0, ceil_div(part.size(), builder.ranks_of(part[0]).size()), wave);
    }
  }
  return builder.take();
}

Plan build_grouped(const Catalog& catalog, Padding padding) {
  const Problem& problem = catalog.problem();
  // Parameters in the order in which their kinds first appear.
  std::vector<int32_t> parameters;
  std::map<int32_t, size_t> per_kind;
  for (int32_t p = 0; p < static_cast<int32_t>(problem.parameters.size()); ++p) {
    if (!is_matrix_algorithm(problem.parameters[p].algorithm)) continue;
    parameters.push_back(p);
    ++per_kind[catalog.kind_of(p)];
  }
  std::stable_sort(parameters.begin(), parameters.end(),
                   [&](int32_t a, int32_t b) { return catalog.kind_of(a) < catalog.kind_of(b); });
  std::vector<int64_t> sizes = problem.group_sizes;
  if (sizes.empty()) {
    for (const auto& [kind, count] : per_kind) sizes.push_back(static_cast<int64_t>(count));
  }
  int64_t sum = 0;
  for (const int64_t size : sizes) sum = std::min(sum + size, int64_t{1} << 40);
  if (sum != static_cast<int64_t>(parameters.size())) {
    throw InvalidArgument(fmt::format("strategy grouped: groups [{}] do not sum to the {} matrix parameters",
                                      fmt::join(sizes, ","), parameters.size()));
  }

  Builder builder(catalog, Strategy::kGrouped, padding);
  size_t begin = 0;
  for (const int64_t size : sizes) {
    const int32_t wave = builder.new_wave(Transport::kPadded);
    const auto count = static_cast<size_t>(size);
    const size_t ranks = builder.ranks_of(catalog.first_matrix(parameters[begin])).size();
    const size_t each = ceil_div(count, ranks);
    for (size_t slot = 0; slot < each * ranks; ++slot) {
      const bool real = slot < count;
      const int32_t p = parameters[begin + std::min(slot, count - 1)];
      const int32_t first_of_rank = parameters[begin + std::min(slot / each * each, count - 1)];
      if (real && catalog.kind_of(p) != catalog.kind_of(first_of_rank)) {
        throw InvalidArgument(fmt::format("strategy grouped: a rank would mix '{}' and '{}' in the group of {}",
                                          problem.parameters[first_of_rank].name, problem.parameters[p].name, size));
      }
      for (int32_t i = 0; i < catalog.grid(p).count(); ++i) {
        const int32_t j = catalog.first_matrix(p) + i;
        if (builder.ranks_of(j).size() != ranks) {
          throw InvalidArgument(fmt::format("strategy grouped: '{}' lies on {} ranks, the first of its group on {}",
                                            problem.parameters[p].name, builder.ranks_of(j).size(), ranks));
        }
        if (real) {
          builder.place(j, slot / each, wave);
        } else {
          builder.pad(j, slot / each, wave);
        }
      }
    }
    begin += count;
  }
  return builder.take();
}

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
  throw InvalidArgument(fmt::format("strategy routed: parameter '{}': {} experts do not divide over {}={}", p.name,
                                    p.shape[0], axes[0].name, axes[0].size));
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

}  // namespace

Plan build_routed(const Catalog& catalog, Padding padding) {
  const Problem& problem = catalog.problem();
  Builder builder(catalog, Strategy::kRouted, padding);
  const std::map<int32_t, std::vector<int32_t>> fallen =
      expert_kinds(catalog, [&](const Parameter& p) { return falls_back(problem, p); });
  for (const auto& [kind, parameters] : fallen) gather_experts(builder, catalog, parameters);
  for (const Group& group : groups_by_shape(catalog)) {
    if (fallen.contains(catalog.kind_of(catalog.parameter_of(group.parts[0][0])))) continue;
    const Parameter& example = problem.parameters[catalog.parameter_of(group.parts[0][0])];
    check_experts_divide(problem, example);
    const bool even = evenly_sharded(catalog.partition(catalog.parameter_of(group.parts[0][0])));
    std::map<std::pair<size_t, Transport>, int32_t> waves;
    auto wave = [&](size_t round, Transport transport) {
      const auto [at, fresh] = waves.emplace(std::pair{round, transport}, 0);
      if (fresh) at->second = builder.new_wave(transport);
      return at->second;
    };
    for (const std::vector<int32_t>& part : group.parts) {
      const HolderSet& set = catalog.holders_of(part[0]);
      const size_t ranks = set.holders.size();
      // Replicas each do it all: what lies whole on one rank of each is orthogonalized there, nothing moves.
      const auto of_replica = static_cast<size_t>(set.of_replica());
      const bool averages = catalog.class_at(part[0]).all_replicas;  // that takes one owner
      const bool whole = of_replica == 1;
      if (ranks == 1 || (!averages && (whole || lies_on_subgroup(problem, example, of_replica)))) {
        const int32_t at = wave(0, whole ? Transport::kRagged : Transport::kGather);
        for (size_t i = 0; i < part.size(); ++i) {
          builder.place(part[i], i % ranks, at);
          if (ranks > 1 && whole) builder.repeat(part[i]);
        }
        continue;
      }
      for (size_t begin = 0; begin < part.size(); begin += ranks) {
        const size_t round = begin / ranks;
        if (begin + ranks <= part.size()) {
          builder.spread(part, begin, 1, wave(round, even ? Transport::kRagged : Transport::kPadded));
        } else if (even && set.replicas == 1) {
          const int32_t rest = wave(round, Transport::kGatherReduce);
          for (size_t i = begin; i < part.size(); ++i) builder.place(part[i], i - begin, rest);
        } else {
          builder.spread(part, begin, 1, wave(round, Transport::kPadded));
        }
      }
    }
  }
  return builder.take();
}

Plan build_layerwise(const Catalog& catalog, Padding /*it has none*/) {
  // Whole parameters, longest first by max * min^2, each to the holder with least so far.
  struct Unit {
    int64_t work = 0;
    std::vector<int32_t> matrices;
  };
  std::map<std::pair<int32_t, int32_t>, Unit> units;  // by parameter and peers
  for (int32_t j = 0; j < catalog.matrix_count(); ++j) {
    Unit& unit = units[{catalog.parameter_of(j), catalog.holders_of(j).peers}];
    unit.work += catalog.rows(j) * catalog.columns(j) * std::min(catalog.rows(j), catalog.columns(j));
    unit.matrices.push_back(j);
  }
  std::vector<const Unit*> order;
  for (const auto& [key, unit] : units) order.push_back(&unit);
  std::stable_sort(order.begin(), order.end(), [](const Unit* a, const Unit* b) { return a->work > b->work; });

  Builder builder(catalog, Strategy::kLayerwise);
  const int32_t wave = builder.new_wave(Transport::kRagged);
  std::vector<int64_t> load(catalog.problem().ranks);
  for (const Unit* unit : order) {
    const std::vector<Holder>& holders = builder.ranks_of(unit->matrices[0]);
    const auto least = std::min_element(holders.begin(), holders.end(), [&](const Holder& a, const Holder& b) {
      return std::pair(load[a.rank], a.rank) < std::pair(load[b.rank], b.rank);
    });
    load[least->rank] += unit->work;
    for (const int32_t j : unit->matrices) builder.place(j, static_cast<size_t>(least - holders.begin()), wave);
  }
  return builder.take();
}

}  // namespace muster::plan
