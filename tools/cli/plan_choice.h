// Which plans a command runs: strategies, for `global` numbers of waves, and how many waves are in flight.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "muster/plan.h"

namespace muster::cli {

class PlanChoice {
 public:
  // One plan, or one per strategy and number of waves.
  enum class Count { kOne, kSeveral };
  // Values of flags that are not given, as the user would write them.
  struct Defaults {
    std::string strategies;
    std::string waves;
    std::string cost = "that of the device";
    Count count = Count::kSeveral;
  };
  explicit PlanChoice(Defaults defaults) : defaults_(std::move(defaults)) {}

  void add_to(CLI::App& command);

  // Every strategy, `global` once for each number of waves, each with every number of waves in flight; `cost` unless
  // --cost says otherwise. Throws InvalidArgument.
  std::vector<PlanOptions> list(const CostTable& cost) const;
  // The one plan of Count::kOne. Throws InvalidArgument if the flags name several.
  PlanOptions one(const CostTable& cost) const;
  // The same with this table whatever --cost says; cost() is what it says, empty if it was not given.
  std::vector<PlanOptions> list_for(const CostTable& cost) const;
  const std::string& cost() const { return cost_; }
  // Nobody asked for these strategies by name: one that cannot plan the model is left out.
  bool may_skip() const { return strategies_.empty() || strategies_ == "all"; }

 private:
  Defaults defaults_;
  std::string strategies_;
  std::string waves_;
  std::string in_flight_;
  std::string groups_;
  bool mixed_groups_ = false;
  std::string cost_;
  std::string scratch_mib_;
};

// "global, 2 waves", "megabatch", "global, 4 waves, 2 in flight".
std::string plan_name(const PlanOptions& options);

}  // namespace muster::cli
