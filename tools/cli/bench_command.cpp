#include "bench_command.h"

#include <algorithm>
#include <memory>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "bench_page.h"
#include "html_option.h"
#include "memory_check.h"
#include "model_arguments.h"
#include "output.h"
#include "plan_choice.h"
#include "plan_text/plan_report.h"
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
  if (ranks.cuda()) return fmt::format("cuda, {}", outcome.graph ? "captured" : "not captured");
  return plan_text::counted_text(ranks.threads(), "thread") + " each";
}

std::string table_text(const Outcome& outcome) {
  const auto colour = wants_colour() ? report::Columns::Colour::kOn : report::Columns::Colour::kOff;
  const Ranks& ranks = outcome.arguments.ranks;
  std::string out =
      fmt::format("{} on {} ({}), {}: medians of {}, taken in turn\n\n", plan_text::printable(outcome.problem.model),
                  plan_text::counted_text(outcome.problem.ranks, "rank"), ranks.comm(), how_text(outcome),
                  plan_text::counted_text(outcome.steps, "step"));
  std::vector<std::string> heads{"strategy", "waves",    "ahead",     "step ms",   "min",      "host ms",
                                 "calls",    "messages", "exchanges", "transfers", "sent",     "kernels",
                                 "scratch",  "padding",  "equal",     "speed-up",  "predicted"};
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
                                 plan_text::grouped_text(r.exchanges_max),
                                 plan_text::grouped_text(r.transfers_max),
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
  out += columns.text(colour);
  for (size_t i = 0; i < outcome.cases.size(); ++i) {
    if (outcome.cases[i].strategy != Strategy::kGlobal) continue;
    const BenchResult& r = outcome.results[i];
    out += fmt::format("\n  scratch of {}: {}", plan_name(outcome.cases[i]),
                       plan_text::scratch_cap_text(r.scratch_cap, r.scratch_cap_raised));
  }
  return out.ends_with('\n') ? out : out + "\n";
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
                    {"exchanges_max", r.exchanges_max},
                    {"transfers_max", r.transfers_max},
                    {"bytes_sent_max", r.bytes_sent_max},
                    {"kernels", r.kernels},
                    {"scratch_bytes_max", r.scratch_bytes_max},
                    {"scratch_cap_bytes", r.scratch_cap},
                    {"scratch_cap_raised", r.scratch_cap_raised},
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
    names.push_back(fmt::format("{}, {}", name(outcome.cases[i].strategy), plan_text::counted_text(waves, "wave")));
  }
  return report::trace_json(traced_steps(outcome.results, names));
}

report::Page page(const Outcome& outcome) {
  const std::string part = outcome.arguments.model.part_words();
  const std::string how =
      fmt::format("{}{} · {}", part.empty() ? "" : part + " · ", outcome.arguments.ranks.comm(), how_text(outcome));
  return bench_page(outcome.problem, outcome.cases, outcome.results, how);
}

// Each case keeps its scratch until all are done.
std::vector<int64_t> scratch_of_all(const Problem& problem, const std::vector<PlanOptions>& cases) {
  std::vector<int64_t> sum(static_cast<size_t>(problem.ranks));
  for (const PlanOptions& options : cases) {
    std::ranges::transform(sum, plan_scratch(problem, options), sum.begin(), std::plus<>());
  }
  return sum;
}

void run(const BenchArguments& arguments) {
  arguments.ranks.check();
  const int64_t steps = arguments.steps.empty() ? 5 : parse_integer("--steps", arguments.steps, {1, 100'000});
  if (!arguments.trace.empty()) check_folder("--trace", arguments.trace);
  check_html(arguments.html);
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
  require_memory(
      {.command = "bench",
       .otherwise = "fewer strategies or ranks",
       .model = arguments.model,
       .ranks = arguments.ranks,
       .held = [&](const run::Workload& w, int32_t rank) { return bench_memory(w, rank, std::ssize(cases)); },
       .alone = {},
       .scratch = [&](const Problem& p) { return scratch_of_all(p, cases); }},
      workload);
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
  if (!arguments.html.empty()) write_html(arguments.html, page(outcome));
  print(arguments.json ? json_text(outcome) : table_text(outcome));
  for (size_t i = 0; i < cases.size(); ++i) {
    if (outcome.results[i].bitwise_equal) continue;
    throw Error(fmt::format("{} and {} end with different weights", plan_name(cases[i]), plan_name(cases[0])));
  }
}

}  // namespace

void add_bench_command(CLI::App& app) {
  const auto arguments = std::make_shared<BenchArguments>();
  CLI::App& command = *app.add_subcommand("bench", "Measure whole steps of a model with several strategies");
  arguments->model.add_to(command);
  arguments->plans.add_to(command);
  arguments->ranks.add_to(command);
  command.add_option("--steps", arguments->steps, "Timed steps of each, after some to warm up (default 5)")
      ->type_name("N");
  command.add_option("--trace", arguments->trace, "Write a timeline of one more step of each, for ui.perfetto.dev")
      ->type_name("FILE");
  add_html_option(command, arguments->html);
  add_graph_option(command, arguments->graph, "on (default) or off");
  add_coefficients_option(command, arguments->coefficients);
  add_json_flag(command, arguments->json);
  command.footer(
      "host ms is what of a step is neither in kernels nor waiting for other ranks; on cuda, until step() returns.\n"
      "Example: muster bench gpt2-small --ranks 2 --layers 2 --strategy per_matrix,chunked,megabatch,global");
  command.callback([arguments] { run(*arguments); });
}

}  // namespace muster::cli
