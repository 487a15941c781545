#include "support/check_scratch.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "plan/normuon_statistics_routes.h"
#include "plan/replicas.h"

namespace muster::test {

namespace {

constexpr int64_t kAlign = 64;
int64_t align(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

std::vector<int64_t> content(const plan::Message& message) {
  std::vector<int64_t> out{message.bytes};
  for (const plan::LineSegment& s : message.lines)
    out.insert(out.end(), {s.matrix, s.part.line, s.part.count, s.offset});
  for (const plan::Segment& s : message.segments) {
    out.insert(out.end(), {s.parameter, s.matrix, s.offset, s.piece.first_offset, s.piece.second_offset});
    for (int d = 0; d < s.piece.box.dims; ++d) {
      out.insert(out.end(), {s.piece.box.begin[d], s.piece.box.end[d], s.piece.first_stride[d]});
    }
  }
  return out;
}

}  // namespace

void ScratchCheck::add(const plan::Exchange& exchange, Place at, bool in) {
  Buffers& mine = buffers_[at];
  Staged& to = in ? mine.in : mine.out;
  std::set<std::vector<int64_t>> staged;
  for (const auto* side : {&exchange.sends, &exchange.receives}) {
    for (const plan::Message& message : *side) {
      const bool fresh = in || side == &exchange.receives || staged.insert(content(message)).second;
      to.least += fresh ? align(message.bytes) : 0;
      to.distinct += (fresh ? message.bytes : 0) + kAlign;
      to.full += message.bytes + kAlign;
    }
  }
  for (const plan::Segment& segment : exchange.local) {
    if (in && segment.matrix >= 0) assemblers_.insert({segment.matrix, at.rank});
    if (in && segment.matrix < 0 && facts_.problem.grad_sync) mine.sums += segment.elements() * byte_size(Dtype::kF32);
  }
}

bool ScratchCheck::in_each_replica(int32_t j) const {
  return !facts_.plan.each_replica.empty() && facts_.plan.each_replica[j];
}

// Its only holder owns it, or every holder has all of it for itself.
bool ScratchCheck::is_home(int32_t j) const {
  if (in_each_replica(j)) return facts_.holders[j] == facts_.copies[j];
  const auto& shards = facts_.shards[facts_.catalog.parameter_of(j)];
  const auto shard = shards.find(facts_.plan.owner[j]);
  return facts_.holders[j] == 1 && shard != shards.end() &&
         std::find(shard->second.begin(), shard->second.end(), facts_.matrices[j][0]) != shard->second.end();
}

// Whether ranks that hold the same of one parameter hold the same of every other that is ever sent.
bool ScratchCheck::replicas_are_alike() const {
  bool all_whole_stay = true;
  std::vector<bool> counts(facts_.problem.parameters.size());
  for (int32_t j = 0; j < facts_.catalog.matrix_count(); ++j) {
    if (facts_.holders[j] > 1) counts[facts_.catalog.parameter_of(j)] = true;
    all_whole_stay = all_whole_stay && (facts_.holders[j] > 1 || is_home(j));
  }
  using Held = std::map<size_t, List>;
  std::vector<Held> held(facts_.problem.ranks);
  std::vector<std::map<List, std::vector<int32_t>>> holders;  // of each shard of each parameter
  for (size_t p = 0; p < facts_.shards.size(); ++p) {
    holders.emplace_back();
    for (const auto& [rank, shard] : facts_.shards[p]) {
      if (!shard.empty()) holders.back()[shard].push_back(rank);
    }
    const bool replicated = std::any_of(holders.back().begin(), holders.back().end(),
                                        [](const auto& entry) { return entry.second.size() > 1; });
    const bool matrix = is_matrix_algorithm(facts_.problem.parameters[p].algorithm);
    if (matrix ? !counts[p] && all_whole_stay : !replicated) continue;
    for (const auto& [rank, shard] : facts_.shards[p]) {
      if (!shard.empty()) held[rank][p] = shard;
    }
  }
  for (const auto& shards : holders) {
    for (const auto& [shard, ranks] : shards) {
      for (const int32_t rank : ranks) {
        if (held[rank] != held[ranks[0]]) return false;
      }
    }
  }
  return true;
}

void ScratchCheck::assemble(int32_t j, Place at) {
  const auto n = static_cast<int64_t>(facts_.matrices[j].size());
  buffers_[at].assembled += align(n * byte_size(facts_.problem.wire));
  if (facts_.problem.grad_sync && facts_.copies[j] > 1) buffers_[at].sums += n * byte_size(Dtype::kF32);
}

int64_t ScratchCheck::workspace(int32_t j) const {
  const auto n = static_cast<int64_t>(facts_.matrices[j].size());
  const int64_t compute = facts_.options.cost.compute_bytes;
  const int64_t s = std::min(facts_.catalog.rows(j), facts_.catalog.columns(j));
  const int64_t lines = facts_.catalog.rows(j) + facts_.catalog.columns(j);
  // What the spectral cap takes for a sketch of at most 96 columns lies where the four Gram matrices do later.
  const int64_t r = s == 1 ? 0 : std::min<int64_t>(96, (s + 31) / 32 * 32);
  const int64_t cap = r * (2 * lines + 2 * std::max(facts_.catalog.rows(j), facts_.catalog.columns(j))) * compute +
                      r * r * (lines / 128 + 8) * 4;
  return align(n * byte_size(facts_.problem.wire)) + n * std::max<int64_t>(4, compute) + 2 * n * compute +
         std::max(4 * s * s * compute, cap) + 16 * lines + 4096;
}

// Matrices are put together by their owners, or where holders gather, by all of them.
void ScratchCheck::count_matrices() {
  const Plan& plan = facts_.plan;
  workspace_.assign(facts_.problem.ranks, 0);
  for (int32_t j = 0; j < facts_.catalog.matrix_count(); ++j) {
    const int32_t w = plan.wave[j];
    const Transport transport = plan.waves[w].transport;
    const bool gathered = transport == Transport::kGather || transport == Transport::kGatherReduce;
    tight_ = tight_ && transport == Transport::kRagged && (!in_each_replica(j) || is_home(j));
    tight_ = tight_ && !facts_.catalog.class_at(j).lines_elsewhere;
    for (int32_t r = 0; r < facts_.problem.ranks; ++r) {
      const bool owns = in_each_replica(j) && !gathered ? assemblers_.contains({j, r})
                                                        : plan::owner_for(facts_.catalog, plan, j, r) == r;
      const bool assembles = gathered ? facts_.catalog.holders_of(j).find(r) != nullptr : owns;
      const bool orthogonalizes = owns || (assembles && transport == Transport::kGather);
      const bool keeps_lines = plan::keeps_all_lines(facts_.catalog, facts_.catalog.class_at(j), r);
      if (assembles && (!is_home(j) || !keeps_lines)) assemble(j, {r, w});
      if (orthogonalizes && !keeps_lines) {
        buffers_[{r, w}].assembled += align(facts_.catalog.class_at(j).matrix.lines() * 4);
      }
      if (orthogonalizes) workspace_[r] = std::max(workspace_[r], workspace(j));
    }
  }
  for (int32_t w = 0; w < static_cast<int32_t>(plan.waves.size()); ++w) {
    for (const ZeroMatrix& zero : plan.waves[w].zeros) {
      const auto n = static_cast<int64_t>(facts_.matrices[zero.like].size());
      for (int32_t r = 0; r < facts_.problem.ranks; ++r) {
        if (plan::owner_for(facts_.catalog, plan, zero, r) != r) continue;
        buffers_[{r, w}].assembled += align(n * byte_size(facts_.problem.wire));
        workspace_[r] = std::max(workspace_[r], workspace(zero.like));
      }
    }
  }
}

std::string ScratchCheck::violation(const PlanSummary& summary) {
  tight_ = replicas_are_alike();
  count_matrices();
  for (int32_t r = 0; r < facts_.problem.ranks; ++r) {
    // One wave computes, others arrive and leave: what lies in one slot is never under way at the same time.
    const size_t slots = 2 * static_cast<size_t>(facts_.plan.in_flight) + 1;
    std::vector<int64_t> least(slots);
    std::vector<int64_t> most(slots);
    for (int32_t w = 0; w < static_cast<int32_t>(facts_.plan.waves.size()); ++w) {
      const Buffers& b = buffers_[{r, w}];
      const int64_t fixed = b.assembled + align(b.sums);
      const int64_t out = tight_ ? b.out.distinct : b.out.full;
      const size_t slot = static_cast<size_t>(w) % slots;
      least[slot] = std::max(least[slot], fixed + std::max(b.in.least, b.out.least));
      most[slot] = std::max(most[slot], fixed + std::max(b.in.full, out));
    }
    const int64_t low = std::accumulate(least.begin(), least.end(), workspace_[r]);
    const int64_t high = std::accumulate(most.begin(), most.end(), workspace_[r]);
    const int64_t predicted = summary.ranks[r].scratch_bytes;
    if (predicted < low || predicted > high) {
      return fmt::format("rank {} takes {} to {} bytes of scratch, predicted {}", r, low, high, predicted);
    }
  }
  return {};
}

}  // namespace muster::test
