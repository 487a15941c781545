// What `muster verify` checked, as a report.
#pragma once

#include <string>
#include <vector>

#include "muster/problem.h"
#include "reference_check.h"
#include "report/page.h"

namespace muster::cli {

struct VerifiedCase {
  std::string name;
  int64_t waves = 0;
  std::string difference{};  // the first one to one rank, in words; empty: the same bits
};

struct VerifiedReference {
  std::string name;  // which gradients: "normal"
  ReferenceCheck::Result result;
};

struct Verified {
  std::string how;  // "local, 2 steps"
  std::vector<VerifiedCase> cases{};
  std::vector<std::string> skipped{};  // why strategies cannot plan the model
  std::vector<VerifiedReference> references{};
};

report::Page verify_page(const Problem& problem, const Verified& verified);

}  // namespace muster::cli
