// Which ranks exchange NorMuon's statistics of a matrix, if its holders keep them.
#pragma once

#include <cstdint>
#include <functional>

#include "muster/plan.h"
#include "plan/catalog.h"

namespace muster::plan {

inline constexpr int64_t kLineBytes = 4;

// Lines between the rank that keeps them and one that orthogonalizes the matrix. Both may be the same rank.
struct LineRoute {
  NormuonStatistics::Part part;
  int32_t keeper = 0;
  int32_t assembler = 0;
  bool in = false;   // they travel to the assembler
  bool out = false;  // and back from it
};

// Visits the routes of a matrix that `rank` is part of, ascending by keeper, then by assembler.
void for_each_line_route(const Catalog& catalog, const Plan& plan, int32_t matrix, int32_t rank,
                         const std::function<void(const LineRoute&)>& visit);

// The replica whose lines an owner gathers: the one whose elements it gathers, unless it holds no element and keeps
// lines of another replica.
int32_t line_source(const HolderSet& holders, const HolderSet& keepers, int32_t owner);

// Whether `rank`, which orthogonalizes a matrix, keeps all its statistics: kernels then use them where they are.
bool keeps_all_lines(const Catalog& catalog, const MatrixClass& c, int32_t rank);

}  // namespace muster::plan
