#include "verify_command.h"

#include <algorithm>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "model_arguments.h"
#include "output.h"
#include "plan_choice.h"
#include "progress.h"
#include "ranks.h"
#include "reference_check.h"
#include "report/columns.h"
#include "report/text.h"
#include "run/verify.h"

namespace muster::cli {
namespace {

using Json = nlohmann::ordered_json;

struct VerifyArguments {
  ModelArguments model;
  PlanChoice plans{{.strategies = "all", .waves = "0,1,2,3,4"}};
  Ranks ranks;
  std::string steps;
  std::string wire;
  bool json = false;
};

struct Case {
  std::string name;
  PlanOptions options;
  int64_t waves = 0;
  std::string refusal{};  // why this strategy cannot plan the model
  std::optional<run::Difference> difference{};
};

struct Outcome {
  const Problem& problem;
  const VerifyArguments& arguments;
  int64_t steps = 0;
  std::vector<Case> cases;
  ReferenceCheck::Result reference{};
  double tolerance = 0;

  int64_t cases_run() const {
    return std::ranges::count_if(cases, [](const Case& c) { return c.refusal.empty(); });
  }
  const Case* first_difference() const {
    const auto at = std::ranges::find_if(cases, [](const Case& c) { return c.difference.has_value(); });
    return at == cases.end() ? nullptr : &*at;
  }
  bool within_tolerance() const { return reference.max_error <= tolerance; }
};

std::vector<Case> plan_cases(const Problem& problem, const PlanChoice& plans) {
  std::vector<Case> cases;
  for (const PlanOptions& options : plans.list()) {
    Case c{.name = plan_name(options), .options = options};
    try {
      c.waves = std::ssize(make_plan(problem, options).waves);
    } catch (const InvalidArgument& error) {
      if (!plans.may_skip()) throw;
      c.refusal = error.what();
    }
    cases.push_back(std::move(c));
  }
  return cases;
}

std::string difference_text(const Problem& problem, const Case& c) {
  const run::Difference& d = *c.difference;
  return fmt::format("{}: parameter '{}' element {} on rank {} is {:.9g}, on one rank {:.9g}", c.name,
                     problem.parameters[d.parameter].name, d.element, d.rank, d.got, d.expected);
}

std::string table_text(const Outcome& outcome) {
  const auto colour = wants_colour() ? report::Columns::Colour::kOn : report::Columns::Colour::kOff;
  std::string out = fmt::format("{} on {} ranks ({}), {} steps, against one rank and the float64 reference\n\n",
                                report::printable(outcome.problem.model), outcome.problem.ranks,
                                outcome.arguments.ranks.comm(), outcome.steps);
  report::Columns columns({"case", "waves", "bitwise equal"});
  for (const Case& c : outcome.cases) {
    if (c.refusal.empty()) columns.add({c.name, std::to_string(c.waves), c.difference ? "NO" : "yes"});
  }
  out += columns.text(colour);
  for (const Case& c : outcome.cases) {
    if (!c.refusal.empty()) out += fmt::format("\n  skipped    {}", report::printable(c.refusal));
  }
  const ReferenceCheck::Result& r = outcome.reference;
  out += fmt::format(
      "\n  reference  error {:.2e} of the update at most ({}), tolerance {:.0e}: {} matrices, {} elements of others\n",
      r.max_error, report::printable(r.worst), outcome.tolerance, report::grouped_text(r.matrices),
      report::grouped_text(r.elements));
  return out;
}

std::string json_text(const Outcome& outcome) {
  Json table = Json::array();
  for (const Case& c : outcome.cases) {
    Json row = {{"strategy", name(c.options.strategy)}, {"waves", c.waves}};
    if (!c.refusal.empty()) {
      row["skipped"] = c.refusal;
    } else {
      row["bitwise_equal"] = !c.difference.has_value();
    }
    if (c.difference) {
      row["difference"] = {{"parameter", outcome.problem.parameters[c.difference->parameter].name},
                           {"element", c.difference->element},
                           {"rank", c.difference->rank},
                           {"got", c.difference->got},
                           {"expected", c.difference->expected}};
    }
    table.push_back(std::move(row));
  }
  const Json json = {{"model", outcome.problem.model},
                     {"ranks", outcome.problem.ranks},
                     {"comm", outcome.arguments.ranks.comm()},
                     {"steps", outcome.steps},
                     {"cases", outcome.cases_run()},
                     {"bitwise_equal", outcome.first_difference() == nullptr},
                     {"max_error", outcome.reference.max_error},
                     {"tolerance", outcome.tolerance},
                     {"worst", outcome.reference.worst},
                     {"reference_matrices", outcome.reference.matrices},
                     {"reference_elements", outcome.reference.elements},
                     {"case_table", std::move(table)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void verify_rank(Communicator& communicator, const run::Workload& workload, Outcome& outcome, Progress* progress) {
  const auto total = static_cast<double>(outcome.cases_run() + 2);
  double done = 0;
  const auto next = [&](std::string_view what) {
    if (progress != nullptr) progress->update(done++ / total, what);
  };
  ReferenceCheck reference(workload, outcome.steps, communicator);
  run::Verifier verifier(workload, communicator,
                         {.steps = outcome.steps, .threads = outcome.arguments.ranks.threads()});
  next("one rank");
  verifier.run_one_rank([&](int32_t p, std::span<const std::byte> whole) { reference.take(p, whole); });
  next("float64 reference");
  const ReferenceCheck::Result result = reference.run();
  if (communicator.rank() == 0) outcome.reference = result;
  for (Case& c : outcome.cases) {
    if (!c.refusal.empty()) continue;
    next(c.name);
    const std::optional<run::Difference> difference = verifier.compare(c.options);
    if (communicator.rank() == 0) c.difference = difference;
  }
}

void run(const VerifyArguments& arguments) {
  arguments.ranks.check();
  const int64_t steps = arguments.steps.empty() ? 2 : parse_integer("--steps", arguments.steps, {1, 1000});
  arguments.plans.list();  // flags before files
  Problem problem = arguments.model.load();
  if (!arguments.wire.empty()) {
    if (arguments.wire != "bf16" && arguments.wire != "f32") {
      throw InvalidArgument(fmt::format("--wire: \"{}\" is neither bf16 nor f32", arguments.wire));
    }
    problem.wire = arguments.wire == "f32" ? Dtype::kF32 : Dtype::kBf16;
  }
  const run::Workload workload(problem);
  Outcome outcome{.problem = problem,
                  .arguments = arguments,
                  .steps = steps,
                  .cases = plan_cases(problem, arguments.plans),
                  .tolerance = ReferenceCheck::tolerance(problem.wire)};
  Progress progress(arguments.ranks.prints() ? Progress::Show::kIfTerminal : Progress::Show::kNever);
  arguments.ranks.run(problem.ranks, [&](Communicator& communicator) {
    const bool first = communicator.rank() == 0;
    verify_rank(communicator, workload, outcome, first ? &progress : nullptr);
  });
  if (!arguments.ranks.prints()) return;
  progress.clear();
  print(arguments.json ? json_text(outcome) : table_text(outcome));
  if (const Case* const c = outcome.first_difference()) throw Error(difference_text(problem, *c));
  if (!outcome.within_tolerance()) {
    throw Error(fmt::format("parameter '{}' is {:.3g} of its update away from the float64 reference; tolerance {:.0e}",
                            outcome.reference.worst, outcome.reference.max_error, outcome.tolerance));
  }
}

}  // namespace

void add_verify_command(CLI::App& app) {
  const auto arguments = std::make_shared<VerifyArguments>();
  CLI::App& command = *app.add_subcommand("verify", "Check N ranks against one, bit for bit, and against float64");
  arguments->model.add_to(command);
  arguments->plans.add_to(command);
  arguments->ranks.add_to(command);
  command.add_option("--steps", arguments->steps, "Steps of every case (default 2)")->type_name("N");
  command.add_option("--wire", arguments->wire, "bf16 or f32: what updates travel in (default: as the model says)")
      ->type_name("D");
  command.add_flag("--json", arguments->json, "Print one JSON object and nothing else");
  command.footer("Example: muster verify gpt2-small --mesh fsdp=2,tp=2 --layers 1");
  command.callback([arguments] { run(*arguments); });
}

}  // namespace muster::cli
