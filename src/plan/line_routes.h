// Which ranks exchange NorMuon's statistics of a matrix, where its holders keep them.
#pragma once

#include <cstdint>
#include <functional>

#include "muster/plan.h"
#include "plan/catalog.h"

namespace muster::plan {

inline constexpr int64_t kLineBytes = 4;

// Lines between the rank that keeps them and one that assembles the matrix. Both may be the same rank.
struct LineRoute {
  Statistics::Part part;
  int32_t holder = 0;
  int32_t assembler = 0;
  bool in = false;   // they travel to the assembler
  bool out = false;  // and back from it
};

// Visits the routes of a matrix in an order that is the same on every rank: all of them, or those that `rank` is part
// of and possibly others.
inline constexpr int32_t kAllRanks = -1;
void for_each_line_route(const Catalog& catalog, const Plan& plan, int32_t matrix, int32_t rank,
                         const std::function<void(const LineRoute&)>& visit);

// Whether `rank`, which assembles a matrix, keeps all its statistics: kernels then use them where they are.
bool keeps_all_lines(const Catalog& catalog, int32_t matrix, int32_t rank);

}  // namespace muster::plan
