#include "plan_command.h"

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
  PlanChoice plan{{.strategies = "global", .waves = "0", .cost = "h200", .count = PlanChoice::Count::kOne}};
  std::string explain;
  std::string html;
  bool parameters = false;
  bool json = false;
};

report::TextTable parameter_table(const std::vector<plan_text::ParameterRow>& rows) {
  report::TextTable table{
      .title = "Parameters",
      .lead = fmt::format("{}: how each lies on the ranks, and which of them update it.",
                          plan_text::counted_text(std::ssize(rows), "parameter")),
      .heads = {"parameter", "shape", "elements", "dtype", "layout", "algorithm", "matrices", "updated by", "ranks"},
      .words = {"dtype", "layout", "algorithm", "updated by", "ranks"}};
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
  table.total = {fmt::format("{} in all", plan_text::grouped_text(std::ssize(rows))),
                 "",
                 plan_text::grouped_text(elements),
                 "",
                 "",
                 "",
                 plan_text::grouped_text(matrices),
                 "",
                 ""};
  return table;
}

void run(const PlanArguments& arguments) {
  const PlanOptions options = arguments.plan.one(CostTable::h200());
  if (arguments.parameters && !arguments.explain.empty()) {
    throw InvalidArgument("--parameters and " + flag_text("--explain", arguments.explain) + " exclude each other");
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
    const report::TextTable table = parameter_table(parameters);
    report::Columns columns(table.heads);
    for (const std::vector<std::string>& row : table.rows) columns.add(row);
    columns.add(table.total);
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
  arguments->plan.add_to(command);
  command.add_option("--explain", arguments->explain, "Say why this parameter goes where it goes")->type_name("PARAM");
  command.add_flag("--parameters", arguments->parameters,
                   "Print every parameter: shape, dtype, layout, algorithm, owners; also into the report");
  add_html_option(command, arguments->html);
  add_json_flag(command, arguments->json);
  command.footer("Example: muster plan moe-397b --mesh fsdp=16,ep=8 --scratch-mib 2048");
  command.callback([arguments] { run(*arguments); });
}

}  // namespace muster::cli
