#include "support/random_problem.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "layout/partition.h"

namespace muster::test {

namespace {

// splitmix64: standard distributions differ between standard libraries.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  int between(int low, int high) { return low + static_cast<int>(next() % static_cast<uint64_t>(high - low + 1)); }
  bool one_in(int n) { return between(1, n) == 1; }

 private:
  uint64_t state_;
};

// n as a sum of `count` parts, each at least `least`.
std::vector<int64_t> parts(Random& random, int64_t n, int count, int64_t least) {
  std::vector<int64_t> out(count, least);
  for (int64_t left = n - least * count; left > 0; --left) ++out[random.between(0, count - 1)];
  return out;
}

Mesh random_mesh(Random& random, int32_t ranks, int index) {
  Mesh mesh;
  mesh.name = "mesh" + std::to_string(index);
  const int axes = random.between(1, 3);
  int32_t room = ranks;
  for (int a = 0; a < axes; ++a) {
    const int32_t size = random.between(1, std::min(room, a == 0 ? room : 4));
    mesh.axes.push_back({"axis" + std::to_string(a), size});
    room /= size;
  }
  if (mesh.size() < ranks || random.one_in(3)) {
    std::vector<int32_t> all(ranks);
    std::iota(all.begin(), all.end(), 0);
    for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[random.between(0, static_cast<int>(i) - 1)]);
    mesh.ranks.assign(all.begin(), all.begin() + mesh.size());
  }
  return mesh;
}

Layout random_layout(Random& random, const Problem& problem, const Shape& shape) {
  Layout layout;
  layout.mesh = random.between(0, static_cast<int>(problem.meshes.size()) - 1);
  const Mesh& mesh = problem.meshes[layout.mesh];
  std::vector<int> split(shape.size(), 0);
  bool flat = false;
  const bool flat_allowed = random.one_in(3);
  for (const MeshAxis& axis : mesh.axes) {
    Placement p;
    const int pick = random.between(0, 9);
    if (pick < 2) {
      // replicated
    } else if (pick < 4 && flat_allowed) {
      p = Placement::flat();
      flat = true;
    } else {
      p = Placement::shard(random.between(0, static_cast<int>(shape.size()) - 1));
      if (random.one_in(6)) p.split_factor = random.between(2, 3);
      // Explicit sizes fit only what no other axis has cut.
      if (random.one_in(5) && split[p.dim] == 0 && p.split_factor == 1) {
        p.sizes = parts(random, shape[p.dim], axis.size, 0);
      }
      ++split[p.dim];
    }
    layout.placements.push_back(p);
  }
  if (random.one_in(2)) {
    layout.order.resize(mesh.axes.size());
    std::iota(layout.order.begin(), layout.order.end(), 0);
    if (random.one_in(2)) std::reverse(layout.order.begin(), layout.order.end());
  }
  // An axis with explicit sizes must come before the others on its dim; where it cannot, chunks do.
  for (size_t a = 0; a < layout.placements.size(); ++a) {
    Placement& p = layout.placements[a];
    if (p.kind == Placement::Kind::kShard && split[p.dim] > 1) p.sizes.clear();
  }
  const auto shards = std::count_if(layout.placements.begin(), layout.placements.end(),
                                    [](const Placement& p) { return p.kind != Placement::Kind::kReplicate; });
  if (flat && shards == 1 && random.one_in(2)) {
    for (size_t a = 0; a < layout.placements.size(); ++a) {
      if (layout.placements[a].kind != Placement::Kind::kFlat) continue;
      int64_t n = 1;
      for (const int64_t dim : shape) n *= dim;
      layout.placements[a].sizes = parts(random, n, mesh.axes[a].size, 0);
    }
  }
  return layout;
}

std::vector<Block> random_blocks(Random& random, int64_t extent) {
  std::vector<Block> blocks;
  for (const int64_t size :
       parts(random, extent, random.between(1, static_cast<int>(std::min<int64_t>(extent, 3))), 1)) {
    Block block{size, {}, {}};
    if (random.one_in(4)) block.normuon = random.one_in(2);
    if (random.one_in(4)) block.norm_axis = random.one_in(2) ? NormAxis::kRows : NormAxis::kColumns;
    blocks.push_back(block);
  }
  return blocks;
}

MatrixSpec random_matrices(Random& random, const Shape& shape) {
  MatrixSpec spec;
  Shape view = shape;
  int64_t n = 1;
  for (const int64_t dim : shape) n *= dim;
  if (shape.size() < 2 || random.one_in(4)) {
    std::vector<int64_t> divisors;
    for (int64_t d = 1; d <= n; ++d) {
      if (n % d == 0) divisors.push_back(d);
    }
    const int64_t rows = divisors[random.between(0, static_cast<int>(divisors.size()) - 1)];
    std::vector<int64_t> inner;
    for (const int64_t d : divisors) {
      if (n / rows % d == 0) inner.push_back(d);
    }
    const int64_t columns = inner[random.between(0, static_cast<int>(inner.size()) - 1)];
    view = spec.view = {n / rows / columns, rows, columns};
  } else if (shape.size() > 2 && random.one_in(3)) {
    spec.flatten = true;
    view = {shape[0], n / shape[0]};
  }
  if (random.one_in(3)) spec.rows = random_blocks(random, view[view.size() - 2]);
  if (random.one_in(4)) spec.columns = random_blocks(random, view.back());
  return spec;
}

}  // namespace

RandomCase random_case(uint64_t seed) {
  Random random(seed);
  RandomCase out;
  Problem& problem = out.problem;
  problem.model = "random-" + std::to_string(seed);
  problem.ranks = random.one_in(8) ? random.between(1, 2) : random.between(2, 10);
  if (random.one_in(50)) problem.ranks = random.between(65, 80);  // past every short cut for few ranks
  problem.wire = random.one_in(2) ? Dtype::kBf16 : Dtype::kF32;
  problem.grad_sync = random.one_in(3);
  const int meshes = random.between(1, 3);
  for (int m = 0; m < meshes; ++m) problem.meshes.push_back(random_mesh(random, problem.ranks, m));
  const int kinds = random.between(1, 4);
  for (int k = 0; k < kinds; ++k) {
    Parameter p;
    const int dims = random.between(1, 4);
    for (int d = 0; d < dims; ++d) p.shape.push_back(random.between(1, dims > 2 ? 6 : 13));
    p.dtype = random.one_in(2) ? Dtype::kBf16 : Dtype::kF32;
    p.grad_dtype = random.one_in(2) ? Dtype::kBf16 : Dtype::kF32;
    p.layout = random_layout(random, problem, p.shape);
    const Algorithm algorithms[] = {Algorithm::kMuon, Algorithm::kNorMuon, Algorithm::kNorMuon, Algorithm::kAdamW,
                                    Algorithm::kLion};
    p.algorithm = algorithms[random.between(0, 4)];
    p.norm_axis = static_cast<NormAxis>(random.between(0, 2));
    if (is_matrix_algorithm(p.algorithm)) p.matrices = random_matrices(random, p.shape);
    const int layers = random.between(1, 4);
    for (int layer = 0; layer < layers; ++layer) {
      p.name = "p" + std::to_string(k) + "." + std::to_string(layer);
      problem.parameters.push_back(p);
    }
  }

  PlanOptions& options = out.options;
  const auto& strategies = all_strategies();
  if (random.one_in(2)) options.strategy = strategies[random.between(0, static_cast<int>(strategies.size()) - 1)];
  if (options.strategy == Strategy::kGlobal && random.one_in(2)) options.waves = random.between(1, 5);
  options.scratch_bytes = random.one_in(3) ? 0 : int64_t{1} << random.between(12, 22);
  if (random.one_in(2)) options.cost = CostTable::cpu();
  options.cost.ranks_per_node = random.between(1, 5);
  if (random.one_in(4)) options.cost.batch_ns = options.cost.exchange_ns = options.cost.message_ns = 0;
  if (random.one_in(4)) options.cost.inter_node_mbps = random.between(10, 100);
  if (options.strategy == Strategy::kGlobal) {
    if (random.one_in(4)) options.wave_order = WaveOrder::kSmallLast;
    if (random.one_in(4)) options.elementwise = ElementwiseOrder::kLast;
  }
  constexpr int32_t kInFlight[] = {0, 1, 2, 3, kAllInFlight};
  options.in_flight = kInFlight[seed % std::size(kInFlight)];
  return out;
}

RandomCase in_replicas(RandomCase c, int32_t replicas) {
  Problem& problem = c.problem;
  for (Mesh& mesh : problem.meshes) {
    std::vector<int32_t> ranks;
    for (int32_t replica = 0; replica < replicas; ++replica) {
      for (int32_t position = 0; position < mesh.size(); ++position) {
        ranks.push_back(replica * problem.ranks + mesh.rank_at(position));
      }
    }
    mesh.axes.insert(mesh.axes.begin(), {"replicas", replicas});
    mesh.ranks = std::move(ranks);
  }
  for (Parameter& p : problem.parameters) {
    p.layout.placements.insert(p.layout.placements.begin(), Placement::replicate());
    if (p.layout.order.empty()) continue;
    for (int32_t& axis : p.layout.order) ++axis;
    p.layout.order.insert(p.layout.order.begin(), 0);
  }
  problem.grad_sync = false;
  c.options.strategy = Strategy::kGlobal;
  c.options.cost.ranks_per_node = problem.ranks;
  c.options.cost.inter_node_mbps = 10;
  problem.ranks *= replicas;
  return c;
}

RandomCase with_held_state(RandomCase c, uint64_t seed) {
  for (size_t p = 0; p < c.problem.parameters.size(); ++p) {
    Parameter& parameter = c.problem.parameters[p];
    const layout::Partition partition(c.problem.meshes[parameter.layout.mesh], parameter.layout, parameter.shape, "");
    const bool averaged = c.problem.grad_sync && partition.replicas() > 1;
    if (!averaged && (seed % 3 != 0 || p % 2 == 0)) parameter.state_keeper = StateKeeper::kHolders;
  }
  return c;
}

}  // namespace muster::test
