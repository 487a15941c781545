// Every parameter of a plan as a row: what it is, how it lies on the ranks, and which of them update it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan_text/plan_report.h"

namespace muster::plan_text {

struct ParameterRow {
  // Which ranks compute the update of an element.
  enum class Update : uint8_t {
    kOwner,    // the owner of its matrix
    kReplica,  // an owner in each replica
    kHolders,  // every rank that holds it, for itself (AdamW and Lion)
    kShared,   // replicas share the elements (AdamW and Lion)
  };

  std::string name;
  Shape shape;
  int64_t elements = 0;
  Dtype dtype = Dtype::kF32;
  std::string layout;  // "fsdp: shard(0)"
  Algorithm algorithm = Algorithm::kNorMuon;
  int64_t matrices = 0;  // 0: AdamW or Lion
  Update update = Update::kOwner;
  std::vector<int32_t> owners;  // the ranks that do so, ascending; of matrices in each replica, all replicas'
};

// In the order of the problem.
std::vector<ParameterRow> parameter_rows(const PlanReport& report);

std::string_view word(ParameterRow::Update update);  // "owner", "each replica", "holders", "shared"
// "3", "0, 2, 5", "0-7", "128 ranks, 0-1016": at most four of them, or what they span.
std::string ranks_words(const std::vector<int32_t>& ranks);

}  // namespace muster::plan_text
