// Counts a plan's scratch from its messages and holds it against the prediction.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "muster/plan.h"
#include "plan/catalog.h"
#include "plan/exchange.h"

namespace muster::test {

using List = std::vector<int64_t>;

// A plan and what is known of its problem element by element. All kept by reference, filled before the first call.
struct PlanFacts {
  const Problem& problem;
  const PlanOptions& options;
  const plan::Catalog& catalog;
  const Plan& plan;
  const std::vector<std::map<int32_t, List>>& shards;  // a parameter, by rank
  const std::vector<List>& matrices;
  const std::vector<int32_t>& copies;   // of every element of a matrix
  const std::vector<int32_t>& holders;  // ranks that hold some of a matrix
};

class ScratchCheck {
 public:
  explicit ScratchCheck(const PlanFacts& facts) : facts_(facts) {}

  struct Place {
    int32_t rank = 0;
    int32_t wave = 0;
    auto operator<=>(const Place&) const = default;
  };
  // What a rank exchanges in a wave, on the way in or out.
  void add(const plan::Exchange& exchange, Place at, bool in);

  // Empty if the prediction covers what an engine takes for these messages, and no more than alignments beyond that.
  // Where replicas differ, or messages consist of zeros, it may count messages in full.
  std::string violation(const PlanSummary& summary);

 private:
  // Messages of one direction, in bytes. An engine aligns each and may keep equal ones once; a plan counts by class and
  // may allow for an alignment each.
  struct Staged {
    int64_t least = 0;     // aligned, equal messages out once
    int64_t distinct = 0;  // as they are, and an alignment for every message; equal messages out once
    int64_t full = 0;      // the same, every message
  };
  // What a wave takes of a rank's memory.
  struct Buffers {
    int64_t assembled = 0;
    int64_t sums = 0;
    Staged in;
    Staged out;
  };
  bool in_each_replica(int32_t j) const;
  bool is_home(int32_t j) const;
  bool replicas_are_alike() const;
  void assemble(int32_t j, Place at);
  void count_matrices();
  int64_t workspace(int32_t j) const;

  const PlanFacts facts_;
  std::map<Place, Buffers> buffers_;
  std::set<std::pair<int32_t, int32_t>> assemblers_;  // matrix, rank that puts its own part there
  std::vector<int64_t> workspace_;                    // a rank
  bool tight_ = true;                                 // equal messages are known to be equal
};

}  // namespace muster::test
