// Follows NorMuon's statistics, line by line, from the ranks that keep them to those that need them and back.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "muster/plan.h"
#include "plan/catalog.h"
#include "plan/exchange.h"

namespace muster::test {

class StatisticsCheck {
 public:
  // Both are kept by reference; the plan is filled before the first call.
  StatisticsCheck(const plan::Catalog& catalog, const Plan& plan) : catalog_(catalog), plan_(plan) {}

  struct Way {
    int32_t from = 0;
    int32_t to = 0;
    int32_t wave = 0;
  };
  // Lines that move, on the way in or out. Throws Violation.
  void add(const plan::LineSegment& lines, Way way, bool in);

  // Every rank that orthogonalizes the matrix has each line once; every rank that keeps a line gets it back once, from
  // one of those. Throws Violation.
  void check(int32_t j, const std::vector<int32_t>& orthogonalizers);

 private:
  // By matrix and line: how often between which keeper and assembler.
  using Line = std::pair<int32_t, int64_t>;
  using Counts = std::map<Line, std::map<std::pair<int32_t, int32_t>, int32_t>>;

  const plan::Catalog& catalog_;
  const Plan& plan_;
  Counts in_;
  Counts out_;
};

}  // namespace muster::test
