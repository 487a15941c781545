#include "bench_command.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "bench_page.h"
#include "model_arguments.h"
#include "output.h"
#include "plan_choice.h"
#include "plan_text/text.h"
#include "progress.h"
#include "ranks.h"
#include "report/columns.h"
#include "report/trace.h"
#include "report/write_file.h"
#include "run/bench.h"

namespace muster::cli {
namespace {

using Json = nlohmann::ordered_json;
using run::BenchResult;

// On a device the first step is carried out, the second recorded and the third the first to be replayed.
constexpr int64_t kDeviceWarmup = 3;
constexpr int64_t kSteadySteps = 10;

struct BenchArguments {
  ModelArguments model;
  PlanChoice plans{{.strategies = "per_matrix,chunked,megabatch,global", .waves = "0"}};
  Ranks ranks;
  std::string steps;
  std::string trace;
  std::string html;
  std::string graph;
  std::string coefficients;
  bool json = false;
};

struct Outcome {
  const Problem& problem;
  const BenchArguments& arguments;
  int64_t steps = 0;
  bool graph = false;
  std::vector<PlanOptions> cases{};
  std::vector<BenchResult> results{};
};

double milliseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e6; }
double seconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e9; }
double step_ms(const BenchResult& result) { return milliseconds(run::median(result.step_ns)); }

std::string time_ms(double ms) { return fmt::format("{:.{}f}", ms, ms < 10 ? 2 : 1); }

std::string how_text(const Outcome& outcome) {
  const Ranks& ranks = outcome.arguments.ranks;
  if (ranks.cuda()) return fmt::format("cuda, {}", outcome.graph ? "recorded" : "not recorded");
  return fmt::format("{} thread{} each", ranks.threads(), ranks.threads() == 1 ? "" : "s");
}

std::string table_text(const Outcome& outcome) {
  const auto colour = wants_colour() ? report::Columns::Colour::kOn : report::Columns::Colour::kOff;
  const Ranks& ranks = outcome.arguments.ranks;
  std::string out = fmt::format("{} on {} rank{} ({}), {}: medians of {} steps, taken in turn\n\n",
                                plan_text::printable(outcome.problem.model), outcome.problem.ranks,
                                outcome.problem.ranks == 1 ? "" : "s", ranks.comm(), how_text(outcome), outcome.steps);
  std::vector<std::string> heads{"strategy", "waves",   "ahead",    "step ms",  "min",
                                 "host ms",  "calls",   "messages", "sent",     "kernels",
                                 "scratch",  "padding", "equal",    "speed-up", "predicted"};
  if (ranks.cuda()) heads.insert(heads.end(), {"steady ms", "first s"});
  report::Columns columns(heads);
  const double first = step_ms(outcome.results.front());
  for (size_t i = 0; i < outcome.cases.size(); ++i) {
    const BenchResult& r = outcome.results[i];
    std::vector<std::string> row{std::string(name(outcome.cases[i].strategy)),
                                 std::to_string(r.waves),
                                 std::to_string(r.in_flight),
                                 time_ms(step_ms(r)),
                                 time_ms(milliseconds(std::ranges::min(r.step_ns))),
                                 fmt::format("{:.2f}", milliseconds(run::median(r.host_ns))),
                                 plan_text::grouped_text(r.collectives),
                                 plan_text::grouped_text(r.messages),
                                 plan_text::bytes_text(r.bytes_sent_max),
                                 plan_text::grouped_text(r.kernels),
                                 plan_text::bytes_text(r.scratch_bytes_max),
                                 plan_text::bytes_text(r.padding_bytes),
                                 r.bitwise_equal ? "yes" : "NO",
                                 fmt::format("{:.2f}×", first / step_ms(r)),
                                 plan_text::time_text(r.predicted_ns)};
    if (ranks.cuda()) {
      row.insert(row.end(), {time_ms(milliseconds(r.steady_ns)), fmt::format("{:.2f}", seconds(r.first_step_ns))});
    }
    columns.add(row);
  }
  return out + columns.text(colour);
}

std::string json_text(const Outcome& outcome) {
  Json list = Json::array();
  const double first = step_ms(outcome.results.front());
  for (size_t i = 0; i < outcome.cases.size(); ++i) {
    const BenchResult& r = outcome.results[i];
    Json stages = Json::object();
    for (int s = 0; s < kStages; ++s) stages[std::string(name(static_cast<Stage>(s)))] = milliseconds(r.stage_ns[s]);
    list.push_back({{"strategy", name(outcome.cases[i].strategy)},
                    {"waves", r.waves},
                    {"in_flight", r.in_flight},
                    {"step_ms", step_ms(r)},
                    {"step_ms_min", milliseconds(std::ranges::min(r.step_ns))},
                    {"step_ms_max", milliseconds(std::ranges::max(r.step_ns))},
                    {"host_ms", milliseconds(run::median(r.host_ns))},
                    {"setup_s", seconds(r.setup_ns)},
                    {"first_step_s", seconds(r.first_step_ns)},
                    {"collectives", r.collectives},
                    {"messages", r.messages},
                    {"bytes_sent_max", r.bytes_sent_max},
                    {"kernels", r.kernels},
                    {"scratch_bytes_max", r.scratch_bytes_max},
                    {"padding_bytes", r.padding_bytes},
                    {"bitwise_equal", r.bitwise_equal},
                    {"speed_up", first / step_ms(r)},
                    {"predicted_ms", milliseconds(r.predicted_ns)},
                    {"stages_ms", std::move(stages)}});
    if (r.steady_ns > 0) list.back()["steady_ms"] = milliseconds(r.steady_ns);
  }
  const Json json = {{"model", outcome.problem.model},
                     {"ranks", outcome.problem.ranks},
                     {"comm", outcome.arguments.ranks.comm()},
                     {"device", outcome.arguments.ranks.device()},
                     {"graph", outcome.graph},
                     {"threads", outcome.arguments.ranks.threads()},
                     {"steps", outcome.steps},
                     {"strategies", std::move(list)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string trace_text(const Outcome& outcome) {
  std::vector<std::string> names;
  for (size_t i = 0; i < outcome.cases.size(); ++i) {
    const int64_t waves = outcome.results[i].waves;
    names.push_back(fmt::format("{}, {} wave{}", name(outcome.cases[i].strategy), waves, waves == 1 ? "" : "s"));
  }
  return report::trace_json(traced_steps(outcome.results, names));
}

std::string page_text(const Outcome& outcome) {
  const std::string how = fmt::format("{} · {}", outcome.arguments.ranks.comm(), how_text(outcome));
  return report::page_html(bench_page(outcome.problem, outcome.cases, outcome.results, how));
}

void run(const BenchArguments& arguments) {
  arguments.ranks.check();
  const int64_t steps = arguments.steps.empty() ? 5 : parse_integer("--steps", arguments.steps, {1, 100'000});
  if (!arguments.trace.empty()) check_folder("--trace", arguments.trace);
  if (!arguments.html.empty()) check_folder("--html", arguments.html);
  std::vector<PlanOptions> cases = arguments.plans.list(arguments.ranks.cost());
  bool graph = true;
  if (!arguments.graph.empty()) {
    graph = parse_switch("--graph", arguments.graph);
    arguments.ranks.parse_graph(arguments.graph);
  }
  run::WorkloadOptions made;
  if (!arguments.coefficients.empty()) {
    made.coefficients = for_flag("--coefficients", [&] { return coefficients(arguments.coefficients); });
  }
  const Problem problem = arguments.model.load();
  if (arguments.plans.may_skip()) {
    std::erase_if(cases, [&](const PlanOptions& options) {
      try {
        make_plan(problem, options);
        return false;
      } catch (const InvalidArgument&) {
        return options.strategy != Strategy::kGlobal;
      }
    });
  }
  const run::Workload workload(problem, made);
  Outcome outcome{.problem = problem, .arguments = arguments, .steps = steps};
  outcome.graph = graph && arguments.ranks.can_record(problem.ranks);
  outcome.cases = cases;
  Progress progress(arguments.ranks.prints() ? Progress::Show::kIfTerminal : Progress::Show::kNever);
  arguments.ranks.run(problem.ranks, [&](Communicator& communicator, const Device& device) {
    run::BenchOptions options{.steps = steps, .threads = arguments.ranks.threads(), .device = device, .graph = graph};
    options.trace = !arguments.trace.empty() || !arguments.html.empty();
    if (arguments.ranks.cuda()) {
      options.warmup = kDeviceWarmup;
      options.steady = kSteadySteps;
    }
    const bool first = communicator.rank() == 0;
    if (first) {
      options.progress = [&](double done, size_t next) { progress.update(done, plan_name(cases[next])); };
      progress.update(0, "planning");
    }
    std::vector<BenchResult> results = run::bench(workload, communicator, cases, options);
    if (first) outcome.results = std::move(results);
  });
  if (!arguments.ranks.prints()) return;
  progress.clear();
  if (!arguments.trace.empty()) {
    for_flag("--trace", [&] { report::write_file(arguments.trace, trace_text(outcome)); });
  }
  if (!arguments.html.empty()) {
    for_flag("--html", [&] { report::write_file(arguments.html, page_text(outcome)); });
  }
  print(arguments.json ? json_text(outcome) : table_text(outcome));
  for (size_t i = 0; i < cases.size(); ++i) {
    if (outcome.results[i].bitwise_equal) continue;
    throw Error(fmt::format("{} and {} end with different weights", plan_name(cases[i]), plan_name(cases[0])));
  }
}

}  // namespace

void add_bench_command(CLI::App& app) {
  const auto arguments = std::make_shared<BenchArguments>();
  CLI::App& command = *app.add_subcommand("bench", "Measure whole steps of a model, one strategy beside another");
  arguments->model.add_to(command);
  arguments->plans.add_to(command);
  arguments->ranks.add_to(command);
  command.add_option("--steps", arguments->steps, "Timed steps of each, after some to warm up (default 5)")
      ->type_name("N");
  command.add_option("--trace", arguments->trace, "Write a timeline of one more step of each, for ui.perfetto.dev")
      ->type_name("FILE");
  command.add_option("--html", arguments->html, "Also write a report: one HTML file, with that timeline")
      ->type_name("FILE");
  add_graph_option(command, arguments->graph, "default on");
  add_coefficients_option(command, arguments->coefficients);
  add_json_flag(command, arguments->json);
  command.footer(
      "host ms is what of a step is neither in kernels nor waiting for other ranks; on cuda, until step() returns.\n"
      "Example: muster bench gpt2-small --ranks 2 --layers 2 --strategy per_matrix,chunked,megabatch,global");
  command.callback([arguments] { run(*arguments); });
}

}  // namespace muster::cli
