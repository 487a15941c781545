// What a program is compiled from.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "muster/plan.h"
#include "plan/catalog.h"

namespace muster::engine {

struct ProgramInput {
  const plan::Catalog& catalog;
  const Plan& plan;
  int32_t rank = 0;
  std::span<const int32_t> group_of;  // hyperparameter group per parameter
  std::vector<bool> active{};         // per parameter: it takes part in the step; empty: all take part

  const Parameter& parameter(int32_t p) const { return catalog.problem().parameters[p]; }
  bool is_active(int32_t p) const { return active.empty() || active[p]; }
  int64_t wire_bytes() const { return byte_size(catalog.problem().wire); }
  bool in_wave(int32_t matrix, int32_t wave) const {
    return plan.wave[matrix] == wave && is_active(catalog.parameter_of(matrix));
  }
};

}  // namespace muster::engine
