#include "simulate_command.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "html_option.h"
#include "model_arguments.h"
#include "output.h"
#include "plan_choice.h"
#include "plan_text/plan_report.h"
#include "plan_text/text.h"
#include "progress.h"
#include "report/columns.h"
#include "report/trace.h"
#include "report/write_file.h"
#include "simulate_page.h"

namespace muster::cli {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct SimulateArguments {
  ModelArguments model;
  PlanChoice plans{{.strategies = "chunked,megabatch,routed,global", .waves = "0", .cost = "that of the cluster"}};
  std::string cluster;
  std::string trace;
  std::string html;
  bool json = false;
};

double milliseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e6; }

std::string table_text(const Problem& problem, const sim::Cluster& cluster, const std::vector<SimulatedCase>& cases) {
  const auto colour = wants_colour() ? report::Columns::Colour::kOn : report::Columns::Colour::kOff;
  std::string out = fmt::format("{} on {} of {}, simulated ({})\n\n", plan_text::printable(problem.model),
                                plan_text::counted_text(problem.ranks, "rank"), plan_text::printable(cluster.name),
                                plan_text::printable(cluster.cost.device));
  report::Columns columns({"strategy", "waves", "ahead", "step", "bound", "over bound", "compute", "exposed comm",
                           "imbalance", "calls", "messages", "padding", "scratch", "memory", "fits", "speed-up"});
  const auto first = static_cast<double>(cases.front().simulation.step_ns);
  for (const SimulatedCase& c : cases) {
    const sim::Simulation& s = c.simulation;
    columns.add({std::string(name(c.options.strategy)), std::to_string(c.plan.waves.size()),
                 std::to_string(c.plan.in_flight), plan_text::time_text(s.step_ns), plan_text::time_text(s.bound_ns),
                 fmt::format("{:.2f}×", c.over_bound()), plan_text::time_text(s.compute_ns),
                 plan_text::time_text(s.exposed_comm_ns), fmt::format("{:.3f}", c.summary.imbalance()),
                 plan_text::grouped_text(c.summary.collectives), plan_text::grouped_text(s.messages),
                 plan_text::bytes_text(c.summary.padding_bytes), plan_text::bytes_text(s.scratch_bytes_max),
                 plan_text::bytes_text(s.memory_bytes_max), s.fits ? "yes" : "NO",
                 fmt::format("{:.2f}×", first / static_cast<double>(std::max<int64_t>(1, s.step_ns)))});
  }
  out += columns.text(colour);
  for (const SimulatedCase& c : cases) {
    if (c.options.strategy == Strategy::kGlobal) {
      out += fmt::format("\n  scratch of {}: {}\n", plan_name(c.options), plan_text::scratch_cap_text(c.plan));
    }
    const sim::Padding& padding = c.simulation.padding;
    if (padding.tensors == 0) continue;
    out += fmt::format("\n  {}: the code that it reproduces also creates {} tensors of zeros per rank ({}), {} more\n",
                       name(c.options.strategy), plan_text::grouped_text(padding.tensors),
                       plan_text::bytes_text(padding.bytes), plan_text::time_text(padding.ns));
  }
  return out;
}

std::string json_text(const Problem& problem, const sim::Cluster& cluster, const std::vector<SimulatedCase>& cases) {
  Json list = Json::array();
  for (const SimulatedCase& c : cases) {
    const sim::Simulation& s = c.simulation;
    list.push_back({{"strategy", name(c.options.strategy)},
                    {"waves", c.plan.waves.size()},
                    {"in_flight", c.plan.in_flight},
                    {"step_ms", milliseconds(s.step_ns)},
                    {"bound_ms", milliseconds(s.bound_ns)},
                    {"compute_ms", milliseconds(s.compute_ns)},
                    {"exposed_comm_ms", milliseconds(s.exposed_comm_ns)},
                    {"exchange_ms", milliseconds(s.exchange_ns)},
                    {"scratch_bytes_max", s.scratch_bytes_max},
                    {"scratch_cap_bytes", c.plan.scratch_cap},
                    {"scratch_cap_raised", c.plan.scratch_cap_raised},
                    {"memory_bytes_max", s.memory_bytes_max},
                    {"fits", s.fits},
                    {"collectives", c.summary.collectives},
                    {"messages", s.messages},
                    {"bytes_sent_total", s.bytes_sent},
                    {"padding_bytes", c.summary.padding_bytes},
                    {"padding_tensors_max", s.padding.tensors},
                    {"padding_tensor_bytes_max", s.padding.bytes},
                    {"padding_ms", milliseconds(s.padding.ns)},
                    {"imbalance", c.summary.imbalance()},
                    {"plan_ms", c.plan_ms}});
  }
  const Json json = {{"model", problem.model},       {"ranks", problem.ranks},
                     {"cluster", cluster.name},      {"source", cluster.source},
                     {"cost", cluster.cost.device},  {"gpu_memory_bytes", cluster.memory_bytes},
                     {"strategies", std::move(list)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

SimulatedCase run_case(const Problem& problem, const PlanOptions& options, const sim::Cluster& cluster,
                       sim::Keep keep) {
  SimulatedCase c{.options = options, .plan = {}, .summary = {}, .simulation = {}};
  const auto start = Clock::now();
  c.plan = make_plan(problem, options);
  c.plan_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  c.summary = summarize(problem, c.plan, options.cost);
  c.simulation = sim::simulate(problem, c.plan, cluster, keep);
  return c;
}

void run(const SimulateArguments& arguments) {
  if (!arguments.trace.empty()) check_folder("--trace", arguments.trace);
  check_html(arguments.html);
  if (!arguments.plans.cost().empty()) for_flag("--cost", [&] { CostTable::load(arguments.plans.cost()); });
  const sim::Cluster cluster =
      for_flag("--cluster", [&] { return sim::Cluster::load(arguments.cluster, arguments.plans.cost()); });
  const std::vector<PlanOptions> options = arguments.plans.list_for(cluster.cost);
  const Problem problem = arguments.model.load();
  Progress progress(Progress::Show::kIfTerminal);
  std::vector<SimulatedCase> cases;
  const bool totals = arguments.trace.empty() && arguments.html.empty();
  const sim::Keep keep = totals ? sim::Keep::kTotals : sim::Keep::kTimeline;
  for (size_t i = 0; i < options.size(); ++i) {
    progress.update(static_cast<double>(i) / static_cast<double>(options.size()), plan_name(options[i]));
    try {
      cases.push_back(run_case(problem, options[i], cluster, keep));
    } catch (const InvalidArgument&) {
      if (!arguments.plans.may_skip() || options[i].strategy == Strategy::kGlobal) throw;
    }
  }
  progress.clear();
  if (!arguments.trace.empty()) {
    for_flag("--trace", [&] { report::write_file(arguments.trace, report::trace_json(simulated_steps(cases))); });
  }
  if (!arguments.html.empty()) {
    write_html(arguments.html, simulate_page(problem, cluster, cases, arguments.model.part_words()));
  }
  print(arguments.json ? json_text(problem, cluster, cases) : table_text(problem, cluster, cases));
}

}  // namespace

void add_simulate_command(CLI::App& app) {
  const auto arguments = std::make_shared<SimulateArguments>();
  CLI::App& command = *app.add_subcommand("simulate", "Predict a step on a cluster with several strategies");
  arguments->model.add_to(command);
  arguments->plans.add_to(command);
  command.add_option("--cluster", arguments->cluster, sim::cluster_names() + ", or a JSON file")
      ->type_name("FILE")
      ->required();
  command.add_option("--trace", arguments->trace, "Write the simulated step of each, for ui.perfetto.dev")
      ->type_name("FILE");
  add_html_option(command, arguments->html);
  add_json_flag(command, arguments->json);
  command.footer("Example: muster simulate moe-397b --mesh fsdp=128 --cluster h100-ib --scratch-mib 2048");
  command.callback([arguments] { run(*arguments); });
}

}  // namespace muster::cli
