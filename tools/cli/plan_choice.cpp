#include "plan_choice.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "arguments.h"
#include "base/text.h"
#include "plan_text/text.h"

namespace muster::cli {
namespace {

constexpr int64_t kMaxWaves = 1 << 20;

std::vector<Strategy> parse_strategies(std::string_view text) {
  if (text == "all") return all_strategies();
  return parse_names("--strategy", text, parse_strategy);
}

// "global, per_matrix, ..."
std::string strategy_names() {
  std::string names;
  for (const Strategy strategy : all_strategies()) {
    if (!names.empty()) names += ", ";
    names += name(strategy);
  }
  return names;
}

// What --scratch-mib says, in bytes.
std::optional<int64_t> parse_scratch(const std::string& text) {
  constexpr int64_t kMib = 1 << 20;
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max() / kMib;
  if (text.empty()) return std::nullopt;
  return parse_integer("--scratch-mib", text, {0, kMax}) * kMib;
}

// "2", "all" or "1,2,all"; 0: as the strategy has it.
std::vector<int32_t> parse_in_flights(std::string_view text) {
  std::vector<int32_t> values;
  for (const std::string_view value : base::split(text, ',')) {
    values.push_back(value == "all" ? kAllInFlight
                                    : static_cast<int32_t>(parse_integer("--in-flight", value, {0, kMaxWaves})));
  }
  return values;
}

}  // namespace

void PlanChoice::add_to(CLI::App& command) {
  const bool one = defaults_.count == Count::kOne;
  command
      .add_option(
          "--strategy", strategies_,
          fmt::format("{} {} (default {})", one ? "One of" : "all, or some of", strategy_names(), defaults_.strategies))
      ->type_name(one ? "S" : "S,...");
  command
      .add_option("--waves", waves_,
                  fmt::format("{} of waves for global; 0: as planned (default {})",
                              one ? "Number" : "One or more numbers", defaults_.waves))
      ->type_name(one ? "K" : "K,...");
  command
      .add_option("--in-flight", in_flight_,
                  fmt::format("Waves that arrive ahead of the one that computes: 1 or more, or all (default 0: as the "
                              "strategy has it){}",
                              one ? "" : "; several: each of them"))
      ->type_name(one ? "N" : "N,...");
  command.add_option("--groups", groups_, "Group sizes in parameters, for --strategy grouped: 1,10,16,16")
      ->type_name("N,...");
  command.add_flag("--mixed-groups", mixed_groups_,
                   "Let a rank own several kinds of parameters in one group, with grouped");
  command
      .add_option(
          "--scratch-mib", scratch_mib_,
          "Most scratch per rank in MiB, for global; 0: no limit (default 1024, or 1.5 times the least that the model "
          "needs if that is more)")
      ->type_name("M");
  command.add_option("--cost", cost_, fmt::format("cpu, h200 or a JSON cost table (default: {})", defaults_.cost))
      ->type_name("FILE");
}

std::vector<PlanOptions> PlanChoice::list(const CostTable& cost) const {
  return list_for(cost_.empty() ? cost : for_flag("--cost", [&] { return CostTable::load(cost_); }));
}

std::vector<PlanOptions> PlanChoice::list_for(const CostTable& cost) const {
  const std::string& named = strategies_.empty() ? defaults_.strategies : strategies_;
  const std::vector<Strategy> strategies = parse_strategies(named);
  // Refuses a flag that is for another strategy.
  const auto require = [&](Strategy needed, const std::string& flag) {
    if (std::ranges::find(strategies, needed) != strategies.end()) return;
    throw InvalidArgument(fmt::format("{}: is for --strategy {}, not {}", flag, name(needed), named));
  };
  const std::vector<int64_t> waves =
      parse_integers("--waves", waves_.empty() ? defaults_.waves : waves_, {0, kMaxWaves});
  if (!waves_.empty() && std::ranges::max(waves) > 0) require(Strategy::kGlobal, flag_text("--waves", waves_));
  const std::optional<int64_t> scratch_bytes = parse_scratch(scratch_mib_);
  if (scratch_bytes.value_or(0) > 0) require(Strategy::kGlobal, flag_text("--scratch-mib", scratch_mib_));
  const std::vector<int32_t> in_flights = parse_in_flights(in_flight_.empty() ? "0" : in_flight_);
  std::vector<int64_t> groups;
  if (!groups_.empty()) {
    groups = parse_integers("--groups", groups_, {1});
    require(Strategy::kGrouped, flag_text("--groups", groups_));
  }
  if (mixed_groups_) require(Strategy::kGrouped, "--mixed-groups");
  PlanOptions common{.cost = cost};
  common.scratch_bytes = scratch_bytes;
  std::vector<PlanOptions> out;
  for (const Strategy strategy : strategies) {
    common.strategy = strategy;
    const bool grouped = strategy == Strategy::kGrouped;
    common.groups = grouped ? groups : std::vector<int64_t>{};
    common.mixed_groups = grouped && mixed_groups_;
    const std::vector<int64_t> own = strategy == Strategy::kGlobal ? waves : std::vector<int64_t>{0};
    for (const int64_t count : own) {
      common.waves = static_cast<int32_t>(count);
      for (const int32_t in_flight : in_flights) {
        common.in_flight = in_flight;
        out.push_back(common);
      }
    }
  }
  return out;
}

PlanOptions PlanChoice::one(const CostTable& cost) const {
  std::vector<PlanOptions> options = list(cost);
  if (options.size() != 1) {
    throw InvalidArgument(
        fmt::format("--strategy, --waves, --in-flight: '{}' and '{}', but this command takes one plan",
                    plan_name(options[0]), plan_name(options[1])));
  }
  return std::move(options.front());
}

std::string plan_name(const PlanOptions& options) {
  std::string text(name(options.strategy));
  if (options.waves > 0) text += ", " + plan_text::counted_text(options.waves, "wave");
  if (options.in_flight == kAllInFlight) return text + ", all in flight";
  if (options.in_flight > 0) text += fmt::format(", {} in flight", options.in_flight);
  return text;
}

}  // namespace muster::cli
