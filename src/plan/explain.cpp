#include "plan/explain.h"

#include <algorithm>

#include "base/text.h"
#include "plan/cost_model/rank_load.h"
#include "plan/element_shares.h"
#include "plan/replicas.h"

namespace muster::plan {

namespace {

constexpr size_t kShown = 8;
constexpr size_t kAlternatives = 5;

// What each rank would pay for a matrix in addition to its other work.
class Candidates {
 public:
  Candidates(const Catalog& catalog, const Plan& plan, const CostTable& table)
      : catalog_(catalog),
        cost_(catalog, table, repeated_classes(catalog, plan)),
        load_(load_with_owners(catalog, cost_, plan.owner)),
        shares_ns_(catalog.problem().ranks) {
    for (const ElementShare& share : plan.shares) {
      add_share_ns(catalog.problem(), cost_, plan.families[share.family], share, shares_ns_);
    }
  }

  // The owner, then the least loaded alternatives; the best holder is always among them.
  std::vector<Candidate> list(int32_t c, int32_t owner) const {
    std::vector<Candidate> others;
    for (int32_t r = 0; r < catalog_.problem().ranks; ++r) {
      if (r != owner && is_possible(c, r, owner)) others.push_back(make(c, r, owner));
    }
    std::sort(others.begin(), others.end(), [](const Candidate& a, const Candidate& b) {
      return std::pair(a.load_ns, a.rank) < std::pair(b.load_ns, b.rank);
    });
    const auto holder =
        std::find_if(others.begin(), others.end(), [](const Candidate& other) { return other.held_elements > 0; });
    if (holder != others.end() && holder - others.begin() >= static_cast<std::ptrdiff_t>(kAlternatives)) {
      others[kAlternatives - 1] = *holder;
    }
    others.resize(std::min(kAlternatives, others.size()));
    others.insert(others.begin(), make(c, owner, owner));
    return others;
  }

 private:
  // With an owner in each replica, that is one of its own.
  bool is_possible(int32_t c, int32_t rank, int32_t owner) const {
    if (!cost_.in_each_replica(c)) return true;
    const HolderSet& set = catalog_.holders_of_class(c);
    const Holder* holder = set.find(rank);
    return holder != nullptr && holder->replica == set.source_replica(owner);
  }

  Candidate make(int32_t c, int32_t rank, int32_t owner) const {
    const Holder* holder = catalog_.holders_of_class(c).find(rank);
    const Load own = cost_.own(c, rank);
    Candidate out;
    out.rank = rank;
    out.held_elements = holder != nullptr ? holder->elements : 0;
    out.orthogonalize_ns = cost_.orthogonalize_ns(c);
    out.normalize_ns = cost_.normalize_ns(c);
    out.exchange_ns = own.in_receive + own.out_send;
    out.start_ns = load_.start_ns(rank, c, rank == owner);
    out.load_ns = shares_ns_[rank] + (rank == owner ? load_.total(rank) : load_.total_with(rank, c));
    return out;
  }

  const Catalog& catalog_;
  const CostModel cost_;
  const RankLoad load_;
  std::vector<int64_t> shares_ns_;
};

void explain_matrices(const Catalog& catalog, const Plan& plan, const CostTable& table, Explanation& out) {
  const Candidates candidates(catalog, plan, table);
  const MatrixGrid& grid = catalog.grid(out.parameter);
  out.matrix_count = grid.count();
  for (int32_t i = 0; i < grid.count() && out.matrices.size() < kShown; ++i) {
    const int32_t j = catalog.first_matrix(out.parameter) + i;
    const HolderSet& set = catalog.holders_of(j);
    const Matrix matrix = grid.at(i);
    MatrixExplanation m;
    m.index = i;
    m.rows = matrix.rows;
    m.columns = matrix.columns;
    m.normuon = matrix.normuon;
    m.wave = plan.wave[j];
    m.holders = static_cast<int32_t>(set.holders.size());
    m.replicas = set.replicas;
    m.each_replica = in_each_replica(plan, j);
    m.candidates = candidates.list(catalog.class_of(j), plan.owner[j]);
    out.matrices.push_back(std::move(m));
  }
}

void explain_elements(const Catalog& catalog, const Plan& plan, Explanation& out) {
  for (const ElementShare& share : plan.shares) {
    const std::vector<int32_t>& family = plan.families[share.family];
    const auto member = std::find(family.begin(), family.end(), out.parameter);
    if (member == family.end()) continue;
    auto local = [&](int32_t p) {
      const layout::Partition& partition = catalog.partition(p);
      return partition.local_elements(partition.position_of(share.ranks[0]));
    };
    int64_t begin = 0;
    for (auto at = family.begin(); at != member; ++at) begin += local(*at);
    const int64_t end = begin + local(out.parameter);
    for (size_t i = 0; i < share.ranks.size() && out.updaters.size() < kShown; ++i) {
      const int64_t n = std::min(end, share.cuts[i + 1]) - std::max(begin, share.cuts[i]);
      if (n > 0) out.updaters.push_back({share.ranks[i], n});
    }
  }
}

}  // namespace

Explanation explain(const Problem& problem, const Plan& plan, const CostTable& cost, const std::string& parameter) {
  const auto at = std::find_if(problem.parameters.begin(), problem.parameters.end(),
                               [&](const Parameter& p) { return p.name == parameter; });
  if (at == problem.parameters.end()) base::fail("no parameter is named {}", base::in_quotes(parameter));
  const Catalog catalog(problem);
  Explanation out;
  out.parameter = static_cast<int32_t>(at - problem.parameters.begin());
  if (is_matrix_algorithm(at->algorithm)) {
    explain_matrices(catalog, plan, cost, out);
  } else {
    explain_elements(catalog, plan, out);
  }
  return out;
}

}  // namespace muster::plan
