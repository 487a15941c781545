// The programs of one optimizer, compiled when a step first needs them.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/program/program.h"
#include "engine/state/state.h"
#include "muster/optimizer.h"
#include "plan/catalog.h"

namespace muster::engine {

class Programs {
 public:
  // Compiles the program of all parameters. All references outlive this object.
  Programs(const plan::Catalog& catalog, const Plan& plan, int32_t rank, std::span<const ParameterMemory> memory,
           State& state);

  const Program& all() const { return programs_.begin()->second; }
  // One entry per parameter: it takes part. The reference is valid until of() is called again.
  const Program& of(const std::vector<bool>& active);

 private:
  static constexpr size_t kMostPrograms = 16;

  Program compile(const std::vector<bool>& active);

  const plan::Catalog& catalog_;
  const Plan& plan_;
  const int32_t rank_;
  State& state_;
  std::vector<int32_t> group_of_;                  // per parameter
  std::map<std::vector<bool>, Program> programs_;  // by active parameters; empty: all
  int64_t compiled_ = 0;                           // after the program of all
};

}  // namespace muster::engine
