#include "plan/cost_model/cost_model.h"

#include <map>
#include <utility>

#include "base/int128.h"
#include "plan/scratch.h"

namespace muster::plan {

namespace {

// Five iterations with symmetric products, in the cheaper of the standard and the Gram form.
int64_t orthogonalize_ns(const CostTable& table, const Matrix& m) {
  const auto s = static_cast<base::Int128>(std::min(m.rows, m.columns));
  const auto l = static_cast<base::Int128>(std::max(m.rows, m.columns));
  const base::Int128 flops = std::min(15 * l * s * s + 5 * s * s * s, 6 * l * s * s + 14 * s * s * s);
  int64_t gflops = table.rates.back().gflops;
  for (const CostTable::Rate& rate : table.rates) {
    if (static_cast<int64_t>(s) <= rate.short_side) {
      gflops = rate.gflops;
      break;
    }
  }
  constexpr base::Int128 kLongest = base::Int128{1}
                                    << 40;  // a quarter of an hour: sums over a model stay within 64 bits
  return static_cast<int64_t>(std::clamp(flops / static_cast<base::Int128>(gflops), base::Int128{1}, kLongest));
}

// Workspace of an orthogonalization besides matrices.
constexpr int64_t kResultBytes = 4;    // of an element in f32
constexpr int64_t kFactorBytes = 16;   // per row and column
constexpr int64_t kAlignments = 4096;  // of all buffers together: at most 16, each to 256 bytes

}  // namespace

Load& Load::operator+=(const Load& o) {
  compute += o.compute;
  start += o.start;
  in_send += o.in_send;
  in_receive += o.in_receive;
  out_send += o.out_send;
  out_receive += o.out_receive;
  return *this;
}

Load& Load::operator-=(const Load& o) { return *this += o * -1; }

Load Load::operator*(int64_t n) const {
  return {compute * n, start * n, in_send * n, in_receive * n, out_send * n, out_receive * n};
}

CostModel::CostModel(const Catalog& catalog, const CostTable& table, std::vector<bool> repeated)
    : catalog_(catalog), table_(table), repeated_(std::move(repeated)) {
  for (const MatrixClass& c : catalog.classes()) {
    orthogonalize_ns_.push_back(plan::orthogonalize_ns(table, c.matrix));
    normalize_ns_.push_back(c.matrix.normuon ? memory_ns(c.matrix.elements() * kNormalizeBytes) : 0);
  }
  for (int32_t s = 0; s < catalog.holder_set_count(); ++s) {
    const HolderSet& set = catalog.holder_set_at(s);
    std::map<std::pair<int32_t, int32_t>, int64_t> shares;
    for (const Holder& h : set.holders) shares[{node(h.rank), h.replica}] += h.elements;
    nodes_.emplace_back();
    for (const auto& [at, elements] : shares) nodes_.back().push_back({at.first, at.second, elements});
  }
}

CostModel::Near CostModel::near(int32_t c, int32_t rank) const {
  const std::vector<NodeShare>& shares = nodes_[catalog_.classes()[c].holder_set];
  const int32_t replica = catalog_.holders_of_class(c).source_replica(rank);
  Near out;
  auto at = std::partition_point(shares.begin(), shares.end(),
                                 [&](const NodeShare& share) { return share.node < node(rank); });
  for (; at != shares.end() && at->node == node(rank); ++at) {
    out.out += at->elements;
    if (at->replica == replica) out.in += at->elements;
  }
  if (in_each_replica(c)) out.out = out.in;
  return out;
}

int64_t CostModel::elementwise_bytes(Algorithm algorithm) const {
  switch (algorithm) {
    case Algorithm::kAdamW:
      return kAdamWBytes;
    case Algorithm::kLion:
      return kLionBytes;
    default:
      return kMomentumBytes + kApplyBytes;
  }
}

Load CostModel::hold(int32_t index, const Holder& holder) const {
  const MatrixClass& c = catalog_.classes()[index];
  const int32_t replicas = served(index);
  const Near close_by = near(index, holder.rank);
  const int64_t elements = c.matrix.elements();
  // Time for bytes to or from the other holders of `all` elements, `close` of them on this node, both including the
  // rank's own part.
  auto spread = [&](int64_t bytes, int64_t close, int64_t all) {
    const int64_t others = all - holder.elements;
    if (others == 0) return link_ns(bytes, node(catalog_.problem().ranks - 1) == 0);
    const int64_t close_bytes = base::mul_div(bytes, close - holder.elements, others);
    return link_ns(close_bytes, true) + link_ns(bytes - close_bytes, false);
  };
  Load load;
  if (c.all_replicas) {
    load.in_send = spread(holder.elements * c.in_bytes, close_by.out, elements * replicas);
  } else if (replicas == 1 || holder.elements < elements) {
    // Holders of whole replicas send nothing in: the owner is one of them.
    load.in_send = spread(holder.elements / replicas * c.in_bytes, close_by.in, elements);
  }
  load.out_receive = spread(holder.elements * c.out_bytes, close_by.out, elements * replicas);
  // Momentum lives with the replica that sends, with every replica, or with the owner where all replicas send.
  const int64_t keepers = c.each_momentum ? 1 : replicas;
  if (!c.all_replicas) load.compute += memory_ns(holder.elements / keepers * kMomentumBytes);
  if (!c.weights_back) load.compute += memory_ns(holder.elements * kApplyBytes);
  return load;
}

Load CostModel::own(int32_t index, int32_t rank) const {
  const MatrixClass& c = catalog_.classes()[index];
  const int32_t replicas = served(index);
  const Holder* holder = catalog_.holder_set(c).find(rank);
  const int64_t elements = c.matrix.elements();
  const int64_t held = holder != nullptr ? holder->elements : 0;
  const Near close_by = near(index, rank);
  const int64_t in_total = c.all_replicas ? elements * replicas : elements;
  const int64_t in_near = c.all_replicas ? close_by.out : close_by.in;

  Load load;
  load.compute = orthogonalize_ns_[index] + normalize_ns_[index];
  load.compute += owner_elementwise_ns(c);
  load.in_receive = link_ns((in_near - held) * c.in_bytes, true) + link_ns((in_total - in_near) * c.in_bytes, false);
  load.out_send = link_ns((close_by.out - held) * c.out_bytes, true) +
                  link_ns((elements * replicas - close_by.out) * c.out_bytes, false);
  if (holder != nullptr) {
    const Load spared = hold(index, *holder);
    load.in_send = -spared.in_send;
    load.out_receive = -spared.out_receive;
  }
  return load;
}

int64_t CostModel::owner_elementwise_ns(const MatrixClass& c) const {
  int64_t bytes = 0;
  if (c.all_replicas) bytes += kMomentumBytes + catalog_.holder_set(c).replicas * c.in_bytes;
  if (c.weights_back) bytes += kApplyBytes;
  return memory_ns(c.matrix.elements() * bytes);
}

std::vector<int64_t> CostModel::held_elementwise_ns() const {
  const Problem& problem = catalog_.problem();
  std::vector<int64_t> ns(problem.ranks);
  std::vector<int32_t> in_place;
  for (int32_t p = 0; p < static_cast<int32_t>(problem.parameters.size()); ++p) {
    if (is_matrix_algorithm(problem.parameters[p].algorithm) || !catalog_.updated_in_place(p)) continue;
    in_place.push_back(p);
  }
  for (const KindCount& kind : count_kinds(catalog_, in_place)) {
    const layout::Partition& partition = catalog_.partition(kind.example);
    const int64_t bytes = elementwise_bytes(problem.parameters[kind.example].algorithm) * kind.number;
    for (int32_t position = 0; position < partition.positions(); ++position) {
      ns[partition.rank(position)] += memory_ns(partition.local_elements(position) * bytes);
    }
  }
  return ns;
}

int64_t CostModel::workspace_bytes(const Matrix& m) const {
  const int64_t s = std::min(m.rows, m.columns);
  const int64_t n = m.elements();
  int64_t bytes = aligned(n * byte_size(catalog_.problem().wire));  // the update as it travels
  if (m.rule()) return bytes + aligned(n * kResultBytes) + aligned(m.rule_workspace) + kAlignments;
  bytes += n * std::max(kResultBytes, int64_t{table_.compute_bytes});  // the result, before it is rounded to that
  bytes += 2 * n * table_.compute_bytes;                               // copies that the iteration alternates between
  // Four Gram matrices, or the sketch of the spectral cap, which lies in their place before them.
  constexpr int64_t kSketch = 96;
  constexpr int64_t kPart = 128;
  const int64_t r = s > 1 ? std::min(kSketch, (s + 31) / 32 * 32) : 0;
  const int64_t sketches = r * (2 * s + 4 * std::max(m.rows, m.columns)) * table_.compute_bytes;
  const int64_t squares = r * r * ((m.rows + m.columns) / kPart + 8) * int64_t{sizeof(float)};
  bytes += std::max(4 * s * s * table_.compute_bytes, sketches + squares);
  bytes += (m.rows + m.columns) * kFactorBytes;  // sums and factors of rows and columns
  return bytes + kAlignments;
}

}  // namespace muster::plan
