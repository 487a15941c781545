// Why the matrices of a parameter have their owners: what they cost there and would cost on other ranks.
#pragma once

#include <string>
#include <vector>

#include "muster/plan.h"

namespace muster::plan {

struct Candidate {
  int32_t rank = 0;
  int64_t held_elements = 0;  // of this matrix, already there
  int64_t orthogonalize_ns = 0;
  int64_t normalize_ns = 0;
  int64_t exchange_ns = 0;  // bytes that this owner receives and sends
  int64_t start_ns = 0;     // messages and batches that this matrix alone would start there
  int64_t load_ns = 0;      // the rank's whole time with the matrix on it
  int64_t cost_ns() const { return orthogonalize_ns + normalize_ns + exchange_ns + start_ns; }
};

struct MatrixExplanation {
  int32_t index = 0;  // within the parameter
  int64_t rows = 0;
  int64_t columns = 0;
  bool normuon = false;
  int32_t wave = 0;
  int32_t holders = 0;
  int32_t replicas = 1;
  bool each_replica = false;          // orthogonalizes it for itself; the candidates are of the owner's
  std::vector<Candidate> candidates;  // the owner first, then the alternatives, best first (at most five)
};

struct Explanation {
  int32_t parameter = 0;
  int32_t matrix_count = 0;
  std::vector<MatrixExplanation> matrices;  // the first eight
  // Elementwise parameters: who updates how many of its elements ({rank, elements}, first eight), if it is shared.
  std::vector<std::pair<int32_t, int64_t>> updaters;
};

// Throws InvalidArgument if the problem has no parameter of that name.
Explanation explain(const Problem& problem, const Plan& plan, const CostTable& cost, const std::string& parameter);

}  // namespace muster::plan
