#include "plan_choice.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "arguments.h"
#include "base/text.h"

namespace muster::cli {
namespace {

constexpr int64_t kMib = 1 << 20;
constexpr int64_t kMaxWaves = 1 << 20;

std::vector<Strategy> parse_strategies(std::string_view text) {
  if (text == "all") return all_strategies();
  return parse_names("--strategy", text, parse_strategy);
}

}  // namespace

std::string strategy_names() {
  std::string names;
  for (const Strategy strategy : all_strategies()) {
    if (!names.empty()) names += ", ";
    names += name(strategy);
  }
  return names;
}

void PlanChoice::add_to(CLI::App& command) {
  command
      .add_option("--strategy", strategies_,
                  fmt::format("all, or some of {} (default {})", strategy_names(), defaults_.strategies))
      ->type_name("S,...");
  command
      .add_option(
          "--waves", waves_,
          fmt::format("Run global with each of these numbers of waves; 0: as planned (default {})", defaults_.waves))
      ->type_name("K,...");
  command.add_option("--in-flight", in_flight_, kInFlightHelp + std::string("; several: each of them"))
      ->type_name("N,...");
  command.add_option("--groups", groups_, kGroupsHelp)->type_name("N,...");
  command.add_flag("--mixed-groups", mixed_groups_, kMixedGroupsHelp);
  command.add_option("--scratch-mib", scratch_mib_, "Scratch cap of a rank (default 1024; 0: none)")->type_name("M");
  command.add_option("--cost", cost_, "cpu, h200 or a JSON cost table (default: as the device)")->type_name("FILE");
}

std::vector<PlanOptions> PlanChoice::list(const CostTable& cost) const {
  return list_for(cost_.empty() ? cost : for_flag("--cost", [&] { return CostTable::load(cost_); }));
}

std::vector<PlanOptions> PlanChoice::list_for(const CostTable& cost) const {
  const std::vector<Strategy> strategies = parse_strategies(strategies_.empty() ? defaults_.strategies : strategies_);
  std::vector<int64_t> waves = parse_integers("--waves", waves_.empty() ? defaults_.waves : waves_, {0, kMaxWaves});
  if (!waves_.empty() && std::ranges::find(strategies, Strategy::kGlobal) == strategies.end()) {
    throw InvalidArgument(fmt::format("--waves {}: is for --strategy global, not {}", waves_, strategies_));
  }
  const std::vector<int32_t> in_flights = parse_in_flights("--in-flight", in_flight_.empty() ? "0" : in_flight_);
  const std::vector<int64_t> groups =
      groups_.empty() ? std::vector<int64_t>{} : parse_integers("--groups", groups_, {1});
  if ((mixed_groups_ || !groups.empty()) && std::ranges::find(strategies, Strategy::kGrouped) == strategies.end()) {
    const std::string flag = groups.empty() ? "--mixed-groups" : "--groups " + groups_;
    throw InvalidArgument(fmt::format("{}: is for --strategy grouped, not {}", flag,
                                      strategies_.empty() ? defaults_.strategies : strategies_));
  }
  PlanOptions common{.cost = cost};
  if (!scratch_mib_.empty()) {
    constexpr int64_t kMax = std::numeric_limits<int64_t>::max() / kMib;
    common.scratch_bytes = parse_integer("--scratch-mib", scratch_mib_, {0, kMax}) * kMib;
  }
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

int32_t parse_in_flight(std::string_view flag, std::string_view text) {
  if (text == "all") return kAllInFlight;
  return static_cast<int32_t>(parse_integer(flag, text, {0, kMaxWaves}));
}

std::vector<int32_t> parse_in_flights(std::string_view flag, std::string_view text) {
  std::vector<int32_t> values;
  for (const std::string_view value : base::split(text, ',')) values.push_back(parse_in_flight(flag, value));
  return values;
}

std::string plan_name(const PlanOptions& options) {
  std::string text(name(options.strategy));
  if (options.waves > 0) text += fmt::format(", {} wave{}", options.waves, options.waves == 1 ? "" : "s");
  if (options.in_flight == kAllInFlight) return text + ", all in flight";
  if (options.in_flight > 0) text += fmt::format(", {} in flight", options.in_flight);
  return text;
}

}  // namespace muster::cli
