// Which plans a command runs: strategies, for `global` numbers of waves, and how many waves are in flight.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "muster/plan.h"

namespace muster::cli {

inline constexpr const char* kInFlightHelp =
    "Waves that arrive ahead of the one that computes: 1 or more, or all (default 0: as the strategy has it)";

inline constexpr const char* kGroupsHelp = "Group sizes in parameters, for --strategy grouped: 1,10,16,16";
inline constexpr const char* kMixedGroupsHelp = "Let a rank own several kinds of parameters in one group, with grouped";

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

void add_scratch_option(CLI::App& command, std::string& value);
// What --scratch-mib says, in bytes. Throws InvalidArgument.
std::optional<int64_t> parse_scratch(const std::string& text);

std::string strategy_names();  // "global, per_matrix, ..."

// "2" or "all", and several where a flag takes a list; 0: as the strategy has it.
int32_t parse_in_flight(std::string_view flag, std::string_view text);
std::vector<int32_t> parse_in_flights(std::string_view flag, std::string_view text);

// "global, 2 waves", "megabatch", "global, 4 waves, 2 in flight".
std::string plan_name(const PlanOptions& options);

}  // namespace muster::cli
