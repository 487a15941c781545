#include "plan_command.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>

#include <fmt/format.h>

#include "arguments.h"
#include "html_option.h"
#include "model_arguments.h"
#include "muster/cost.h"
#include "muster/plan.h"
#include "output.h"
#include "plan/explain.h"
#include "plan_choice.h"
#include "plan_others.h"
#include "plan_text/explain_text.h"
#include "plan_text/parameter_table.h"
#include "plan_text/plan_json.h"
#include "plan_text/plan_table.h"
#include "plan_text/text.h"
#include "plan_text/words.h"
#include "report/columns.h"

namespace muster::cli {
namespace {

struct PlanArguments {
  ModelArguments model;
  std::string strategy;
  std::string waves;
  std::string in_flight;
  std::string scratch_mib;
  std::string cost;
  std::string groups;
  bool mixed_groups = false;
  std::string explain;
  std::string html;
  bool parameters = false;
  bool json = false;
};

report::TextTable parameter_table(const std::vector<plan_text::ParameterRow>& rows) {
  report::TextTable table{
      .title = "Parameters",
      .lead = "Every parameter, how it lies on the ranks, and which of them update it.",
      .heads = {"parameter", "shape", "elements", "dtype", "layout", "algorithm", "matrices", "updated by", "ranks"}};
  int64_t elements = 0;
  int64_t matrices = 0;
  for (const plan_text::ParameterRow& row : rows) {
    elements += row.elements;
    matrices += row.matrices;
    table.rows.push_back({plan_text::printable(row.name), plan_text::shape_words(row.shape),
                          plan_text::grouped_text(row.elements), std::string(plan_text::word(row.dtype)), row.layout,
                          std::string(plan_text::word(row.algorithm)), plan_text::grouped_text(row.matrices),
                          std::string(plan_text::word(row.update)), plan_text::ranks_words(row.owners)});
  }
  table.rows.push_back({fmt::format("{} in all", plan_text::grouped_text(std::ssize(rows))), "",
                        plan_text::grouped_text(elements), "", "", "", plan_text::grouped_text(matrices), "", ""});
  return table;
}

// A flag that the strategy would ignore is refused, so that nobody compares what was never applied.
void require_strategy(std::string_view flag, Strategy needed, Strategy given) {
  if (given == needed) return;
  throw InvalidArgument(fmt::format("{}: is for --strategy {}, not {}", flag, name(needed), name(given)));
}

PlanOptions plan_options(const PlanArguments& arguments) {
  PlanOptions options;
  if (!arguments.strategy.empty()) {
    options.strategy = for_flag("--strategy", [&] { return parse_strategy(arguments.strategy); });
  }
  if (!arguments.waves.empty()) {
    constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
    options.waves = static_cast<int32_t>(parse_integer("--waves", arguments.waves, {0, kMax}));
    if (options.waves > 0) require_strategy("--waves " + arguments.waves, Strategy::kGlobal, options.strategy);
  }
  if (!arguments.in_flight.empty()) options.in_flight = parse_in_flight("--in-flight", arguments.in_flight);
  options.scratch_bytes = parse_scratch(arguments.scratch_mib);
  if (options.scratch_bytes.value_or(0) > 0) {
    require_strategy("--scratch-mib " + arguments.scratch_mib, Strategy::kGlobal, options.strategy);
  }
  if (!arguments.groups.empty()) {
    options.groups = parse_integers("--groups", arguments.groups, {1});
    require_strategy("--groups " + arguments.groups, Strategy::kGrouped, options.strategy);
  }
  if (arguments.mixed_groups) require_strategy("--mixed-groups", Strategy::kGrouped, options.strategy);
  options.mixed_groups = arguments.mixed_groups;
  if (!arguments.cost.empty()) {
    options.cost = for_flag("--cost", [&] { return CostTable::load(arguments.cost); });
  }
  return options;
}

void run(const PlanArguments& arguments) {
  const PlanOptions options = plan_options(arguments);
  if (arguments.parameters && !arguments.explain.empty()) {
    throw InvalidArgument("--parameters and --explain " + arguments.explain + " exclude each other");
  }
  check_html(arguments.html);
  const Problem problem = arguments.model.load();

  const auto start = std::chrono::steady_clock::now();
  const Plan plan = make_plan(problem, options);
  const auto elapsed = std::chrono::steady_clock::now() - start;

  const PlanSummary summary = summarize(problem, plan, options.cost);
  const plan_text::PlanReport report = {
      .problem = problem,
      .plan = plan,
      .summary = summary,
      .cost = options.cost,
      .plan_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count(),
  };
  std::vector<plan_text::ParameterRow> parameters;
  if (arguments.parameters) parameters = plan_text::parameter_rows(report);
  std::optional<plan::Explanation> explanation;
  if (!arguments.explain.empty()) {
    explanation = for_flag("--explain", [&] { return plan::explain(problem, plan, options.cost, arguments.explain); });
  }
  if (!arguments.html.empty()) {
    report::Page page = plan_page_with_others(report, options);
    if (const std::string part = arguments.model.part_words(); !part.empty())
      page.subtitle = part + " · " + page.subtitle;
    if (arguments.parameters) page.tables.push_back(parameter_table(parameters));
    write_html(arguments.html, page);
  }
  if (arguments.json) {
    print(plan_text::plan_json(report, {.explanation = explanation ? &*explanation : nullptr,
                                        .parameters = arguments.parameters ? &parameters : nullptr}));
  } else if (arguments.parameters) {
    report::Columns columns(parameter_table({}).heads);
    for (const std::vector<std::string>& row : parameter_table(parameters).rows) columns.add(row);
    print(columns.text(wants_colour() ? report::Columns::Colour::kOn : report::Columns::Colour::kOff));
  } else if (explanation) {
    print(plan_text::explain_text(report, *explanation));
  } else {
    print(plan_text::plan_table(report, {.colour = wants_colour()}));
  }
}

}  // namespace

void add_plan_command(CLI::App& app) {
  const auto arguments = std::make_shared<PlanArguments>();
  CLI::App& command = *app.add_subcommand("plan", "Decide which rank orthogonalizes which matrix, and what moves");
  arguments->model.add_to(command);
  command.add_option("--strategy", arguments->strategy, strategy_names() + " (default global)")->type_name("S");
  command.add_option("--groups", arguments->groups, kGroupsHelp)->type_name("N,...");
  command.add_flag("--mixed-groups", arguments->mixed_groups, kMixedGroupsHelp);
  command.add_option("--waves", arguments->waves, "Cut the step into K waves (default 0: by predicted time and cap)")
      ->type_name("K");
  command.add_option("--in-flight", arguments->in_flight, kInFlightHelp)->type_name("N");
  add_scratch_option(command, arguments->scratch_mib);
  command.add_option("--cost", arguments->cost, "h200 (default), cpu, or a JSON cost table")->type_name("FILE");
  command.add_option("--explain", arguments->explain, "Say why this parameter goes where it goes")->type_name("PARAM");
  command.add_flag("--parameters", arguments->parameters,
                   "Print every parameter: shape, dtype, layout, algorithm, owners; also into the report");
  add_html_option(command, arguments->html);
  add_json_flag(command, arguments->json);
  command.footer("Example: muster plan moe-397b --mesh fsdp=16,ep=8 --scratch-mib 2048");
  command.callback([arguments] { run(*arguments); });
}

}  // namespace muster::cli
