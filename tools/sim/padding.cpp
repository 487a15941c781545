#include "sim/padding.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "plan/cost_model/cost_model.h"

namespace muster::sim {
namespace {

constexpr int64_t kTensors = 3;  // weight, gradient, momentum
constexpr int64_t kMomentumStateBytes = 4;

// Zeros of one wave that lie on the ranks of one holder set: those like a parameter.
struct Part {
  int32_t holder_set = 0;
  int32_t parameter = 0;
  auto operator<=>(const Part&) const = default;
};
struct Zeros {
  int64_t matrices = 0;
  std::vector<int32_t> owners;  // each has a tensor of its own
};

class Counter {
 public:
  Counter(const plan::Catalog& catalog, const Plan& plan) : catalog_(catalog), ranks_(catalog.problem().ranks) {
    for (const Wave& wave : plan.waves) count(wave);
  }

  Padding busiest(const Cluster& cluster) const {
    const plan::CostModel cost(catalog_, cluster.cost);
    const int64_t bytes = zero_bytes(catalog_.problem());
    Padding most;
    for (const Rank& rank : ranks_) {
      const int64_t touched = bytes + plan::kMomentumBytes + plan::kApplyBytes;
      const int64_t ns = kTensors * rank.tensors * cluster.launch_ns + cost.memory_ns(rank.elements * touched);
      most.tensors = std::max(most.tensors, kTensors * rank.tensors);
      most.bytes = std::max(most.bytes, rank.elements * bytes);
      most.ns = std::max(most.ns, ns);
    }
    return most;
  }

 private:
  struct Rank {
    int64_t tensors = 0;  // times three
    int64_t elements = 0;
  };

  void count(const Wave& wave) {
    std::map<Part, Zeros> parts;
    for (const ZeroMatrix& zero : wave.zeros) {
      Zeros& zeros = parts[{catalog_.class_at(zero.like).holder_set, catalog_.parameter_of(zero.like)}];
      ++zeros.matrices;
      zeros.owners.push_back(zero.owner);
    }
    // A tensor may consist of many matrices (experts), which may lie on several sets of ranks.
    std::map<std::pair<int32_t, int32_t>, int64_t> tensors;  // by rank and parameter
    for (auto& [part, zeros] : parts) {
      std::ranges::sort(zeros.owners);
      const auto repeated = std::ranges::unique(zeros.owners);
      const int64_t owners = repeated.begin() - zeros.owners.begin();
      for (const plan::Holder& h : catalog_.holder_set_at(part.holder_set).holders) {
        int64_t& count = tensors[{h.rank, part.parameter}];
        count = std::max(count, owners);
        ranks_[h.rank].elements += zeros.matrices * h.elements;
      }
    }
    for (const auto& [where, count] : tensors) ranks_[where.first].tensors += count;
  }

  const plan::Catalog& catalog_;
  std::vector<Rank> ranks_;
};

}  // namespace

int64_t zero_bytes(const Problem& problem) {
  int64_t most = 0;
  for (const Parameter& p : problem.parameters) {
    if (!is_matrix_algorithm(p.algorithm)) continue;
    most = std::max(most, byte_size(p.dtype) + byte_size(p.grad_dtype) + kMomentumStateBytes);
  }
  return most;
}

Padding padding(const plan::Catalog& catalog, const Plan& plan, const Cluster& cluster) {
  if (plan.strategy != Strategy::kChunked && plan.strategy != Strategy::kRouted) return {};
  return Counter(catalog, plan).busiest(cluster);
}

}  // namespace muster::sim
