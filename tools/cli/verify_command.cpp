#include "verify_command.h"

#include <algorithm>
#include <memory>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "base/text.h"
#include "html_option.h"
#include "memory_check.h"
#include "model_arguments.h"
#include "output.h"
#include "plan_choice.h"
#include "plan_text/text.h"
#include "progress.h"
#include "ranks.h"
#include "reference_check.h"
#include "report/columns.h"
#include "run/verify.h"
#include "verify_page.h"

namespace muster::cli {
namespace {

using Json = nlohmann::ordered_json;

struct VerifyArguments {
  ModelArguments model;
  PlanChoice plans{{.strategies = "all", .waves = "0,1,2,3,4"}};
  Ranks ranks;
  std::string steps;
  std::string wire;
  std::string graph;
  std::string missing;
  std::string spectrum;
  std::string coefficients;
  std::string html;
  bool json = false;
};

struct Case {
  std::string name;
  PlanOptions options;
  int64_t waves = 0;
  bool graph = false;
  std::string refusal{};  // why this strategy cannot plan the model
  std::optional<run::Difference> difference{};
};

// Cases that get the same gradients, and one rank to compare them with.
struct Round {
  run::Workload workload;
  std::vector<Case> cases;
  ReferenceCheck::Result reference{};

  std::string_view spectrum() const { return name(workload.options().spectrum); }
  bool missing() const { return workload.options().missing; }
};

struct Outcome {
  const Problem& problem;
  const VerifyArguments& arguments;
  int64_t steps = 0;
  std::vector<Round> rounds;

  std::vector<const Case*> cases() const {
    std::vector<const Case*> out;
    for (const Round& round : rounds) {
      for (const Case& c : round.cases) out.push_back(&c);
    }
    return out;
  }
  int64_t cases_run() const {
    return std::ranges::count_if(cases(), [](const Case* c) { return c->refusal.empty(); });
  }
  const Case* first_difference() const {
    for (const Case* const c : cases()) {
      if (c->difference) return c;
    }
    return nullptr;
  }
  // The round that came nearest to its tolerance.
  const Round& nearest() const {
    return *std::ranges::max_element(rounds, {}, [](const Round& round) { return round.reference.share(); });
  }
  int64_t checked(int64_t ReferenceCheck::Result::*what) const {
    int64_t sum = 0;
    for (const Round& round : rounds) sum += round.reference.*what;
    return sum;
  }
};

// Recorded or not, as far as there is a choice.
std::vector<bool> graphs(const VerifyArguments& arguments, int32_t ranks) {
  if (!arguments.graph.empty()) return arguments.ranks.parse_graph(arguments.graph);
  return arguments.ranks.can_record(ranks) ? std::vector{true, false} : std::vector{false};
}

std::vector<bool> missing(const VerifyArguments& arguments) {
  if (!arguments.missing.empty()) return parse_switches("--missing", arguments.missing);
  return arguments.ranks.cuda() ? std::vector{false, true} : std::vector{false};
}

std::vector<run::Spectrum> spectra(const VerifyArguments& arguments) {
  if (arguments.spectrum.empty()) return {run::Spectrum::kNormal};
  if (arguments.spectrum == "all") return run::all_spectra();
  return parse_names("--spectrum", arguments.spectrum, run::parse_spectrum);
}

std::vector<Case> plan_cases(const Problem& problem, const VerifyArguments& arguments, std::string_view suffix) {
  std::vector<Case> cases;
  for (const PlanOptions& options : arguments.plans.list(arguments.ranks.cost())) {
    Case c{.name = plan_name(options) + std::string(suffix), .options = options};
    try {
      c.waves = std::ssize(make_plan(problem, options).waves);
    } catch (const InvalidArgument& error) {
      if (!arguments.plans.may_skip()) throw;
      c.refusal = error.what();
    }
    for (const bool graph : graphs(arguments, problem.ranks)) {
      c.graph = graph;
      cases.push_back(c);
      if (graph) cases.back().name += ", graph";
      if (!c.refusal.empty()) break;
    }
  }
  return cases;
}

// What its cases are called after.
std::string suffix_of(const run::WorkloadOptions& options) {
  std::string suffix;
  if (options.spectrum != run::Spectrum::kNormal) suffix += fmt::format(", {}", name(options.spectrum));
  if (options.missing) suffix += ", gradients missing";
  return suffix;
}

std::string difference_text(const Problem& problem, const Case& c) {
  const run::Difference& d = *c.difference;
  return fmt::format("{}: parameter '{}' element {} on rank {} is {:.9g}, on one rank {:.9g}", c.name,
                     problem.parameters[d.parameter].name, d.element, d.rank, d.got, d.expected);
}

std::string table_text(const Outcome& outcome) {
  const auto colour = wants_colour() ? report::Columns::Colour::kOn : report::Columns::Colour::kOff;
  const Ranks& ranks = outcome.arguments.ranks;
  std::string out =
      fmt::format("{} on {} ({}{}), {}, compared with one rank and the float64 reference\n\n",
                  plan_text::printable(outcome.problem.model), plan_text::counted_text(outcome.problem.ranks, "rank"),
                  ranks.comm(), ranks.cuda() ? ", cuda" : "", plan_text::counted_text(outcome.steps, "step"));
  report::Columns columns({"case", "waves", "bitwise equal"});
  for (const Case* const c : outcome.cases()) {
    if (c->refusal.empty()) columns.add({c->name, std::to_string(c->waves), c->difference ? "NO" : "yes"});
  }
  out += columns.text(colour);
  for (const Case& c : outcome.rounds.front().cases) {
    if (!c.refusal.empty()) out += fmt::format("\n  skipped    {}", plan_text::printable(c.refusal));
  }
  for (const Round& round : outcome.rounds) {
    const ReferenceCheck::Result& r = round.reference;
    out += fmt::format(
        "\n  reference  error {:.2e} of the update at most ({}{}), tolerance {:.0e}: {}, {} of AdamW and Lion",
        r.max_error, plan_text::printable(r.worst), suffix_of(round.workload.options()), r.tolerance,
        plan_text::counted_text(r.matrices, "matrix", "matrices"), plan_text::counted_text(r.elements, "element"));
  }
  return out + "\n";
}

std::string json_text(const Outcome& outcome) {
  Json table = Json::array();
  for (const Round& round : outcome.rounds) {
    for (const Case& c : round.cases) {
      Json row = {{"strategy", name(c.options.strategy)},
                  {"waves", c.waves},
                  {"graph", c.graph},
                  {"spectrum", round.spectrum()},
                  {"missing", round.missing()}};
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
  }
  Json errors = Json::array();
  for (const Round& round : outcome.rounds) {
    errors.push_back({{"spectrum", round.spectrum()},
                      {"missing", round.missing()},
                      {"max_error", round.reference.max_error},
                      {"tolerance", round.reference.tolerance},
                      {"worst", round.reference.worst}});
  }
  const ReferenceCheck::Result& reference = outcome.nearest().reference;
  const Json json = {{"model", outcome.problem.model},
                     {"ranks", outcome.problem.ranks},
                     {"comm", outcome.arguments.ranks.comm()},
                     {"device", outcome.arguments.ranks.device()},
                     {"steps", outcome.steps},
                     {"cases", outcome.cases_run()},
                     {"bitwise_equal", outcome.first_difference() == nullptr},
                     {"max_error", reference.max_error},
                     {"tolerance", reference.tolerance},
                     {"worst", reference.worst},
                     {"reference_matrices", outcome.checked(&ReferenceCheck::Result::matrices)},
                     {"reference_elements", outcome.checked(&ReferenceCheck::Result::elements)},
                     {"errors", std::move(errors)},
                     {"case_table", std::move(table)}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Verified verified(const Outcome& outcome) {
  const Ranks& ranks = outcome.arguments.ranks;
  const std::string part = outcome.arguments.model.part_words();
  Verified out{.how = fmt::format("{}{}{} · {} per case", part.empty() ? "" : part + " · ", ranks.comm(),
                                  ranks.cuda() ? ", cuda" : "", plan_text::counted_text(outcome.steps, "step"))};
  for (const Case* const c : outcome.cases()) {
    if (!c->refusal.empty()) continue;
    out.cases.push_back({c->name, c->waves, c->difference ? difference_text(outcome.problem, *c) : ""});
  }
  for (const Case& c : outcome.rounds.front().cases) {
    if (!c.refusal.empty()) out.skipped.push_back(c.refusal);
  }
  for (const Round& round : outcome.rounds) {
    out.references.push_back(
        {fmt::format("{}{}", round.spectrum(), round.missing() ? ", some missing" : ""), round.reference});
  }
  return out;
}

void verify_rank(Communicator& communicator, const Device& device, Outcome& outcome, Progress* progress) {
  const auto total = static_cast<double>(outcome.cases_run() + 2 * std::ssize(outcome.rounds));
  double done = 0;
  const auto next = [&](std::string_view what) {
    if (progress != nullptr) progress->update(done++ / total, what);
  };
  const bool first = communicator.rank() == 0;
  for (Round& round : outcome.rounds) {
    ReferenceCheck reference(round.workload, {outcome.steps, device.kind}, communicator);
    run::Verifier verifier(round.workload, communicator,
                           {.steps = outcome.steps, .threads = outcome.arguments.ranks.threads(), .device = device});
    next("one rank");
    verifier.run_one_rank([&](int32_t p, std::span<const std::byte> whole) { reference.take(p, whole); });
    next("float64 reference");
    const ReferenceCheck::Result result = reference.run();
    if (first) round.reference = result;
    for (Case& c : round.cases) {
      if (!c.refusal.empty()) continue;
      next(c.name);
      const std::optional<run::Difference> difference = verifier.compare(c.options, c.graph);
      if (first) c.difference = difference;
    }
  }
}

// The first rank of this process answers for what all of them keep for the reference: counting it takes a while.
run::MemoryNeed held_memory(const run::Workload& workload, int32_t rank, int64_t gradients, const Ranks& ranks) {
  run::MemoryNeed need = verify_memory(workload, rank, gradients);
  const int32_t all = workload.problem().ranks;
  const std::vector<int32_t> here = ranks.here(all);
  if (rank == here.front()) need.host += ReferenceCheck::kept_bytes(workload) / all * std::ssize(here);
  return need;
}

// Cases run one after another.
std::vector<int64_t> largest_scratch(const Problem& problem, const VerifyArguments& arguments) {
  std::vector<int64_t> most(static_cast<size_t>(problem.ranks));
  for (const PlanOptions& options : arguments.plans.list(arguments.ranks.cost())) {
    std::ranges::transform(most, plan_scratch(problem, options), most.begin(), std::ranges::max);
  }
  return most;
}

void run(const VerifyArguments& arguments) {
  arguments.ranks.check();
  // The first step is carried out, the second recorded; then it is replayed.
  int64_t steps = arguments.ranks.cuda() ? 4 : 2;
  if (!arguments.steps.empty()) steps = parse_integer("--steps", arguments.steps, {1, 1000});
  arguments.plans.list(arguments.ranks.cost());  // flags before files
  graphs(arguments, 1);
  missing(arguments);
  spectra(arguments);
  run::WorkloadOptions options;
  if (!arguments.coefficients.empty()) {
    options.coefficients = for_flag("--coefficients", [&] { return coefficients(arguments.coefficients); });
  }
  Problem problem = arguments.model.load();
  check_html(arguments.html);
  if (!arguments.wire.empty()) {
    if (arguments.wire != "bf16" && arguments.wire != "f32") {
      throw InvalidArgument(fmt::format("--wire: {} is neither bf16 nor f32", base::in_quotes(arguments.wire)));
    }
    problem.wire = arguments.wire == "f32" ? Dtype::kF32 : Dtype::kBf16;
  }
  const run::Workload plain(problem, options);
  const int64_t sets = arguments.ranks.cuda() ? run::Verifier::kDeviceGradients : 1;
  require_memory(
      {.command = "verify",
       .otherwise = "fewer ranks",
       .model = arguments.model,
       .ranks = arguments.ranks,
       .held = [&](const run::Workload& w, int32_t rank) { return held_memory(w, rank, sets, arguments.ranks); },
       .alone = [&](const run::Workload& w) { return verify_memory(w, run::kWhole, sets); },
       .scratch = [&](const Problem& p) { return largest_scratch(p, arguments); }},
      plain);
  Outcome outcome{.problem = problem, .arguments = arguments, .steps = steps, .rounds = {}};
  for (const run::Spectrum spectrum : spectra(arguments)) {
    for (const bool some : missing(arguments)) {
      options.spectrum = spectrum;
      options.missing = some;
      outcome.rounds.push_back({run::Workload(problem, options), plan_cases(problem, arguments, suffix_of(options))});
    }
  }
  Progress progress(arguments.ranks.prints() ? Progress::Show::kIfTerminal : Progress::Show::kNever);
  arguments.ranks.run(problem.ranks, [&](Communicator& communicator, const Device& device) {
    verify_rank(communicator, device, outcome, communicator.rank() == 0 ? &progress : nullptr);
  });
  if (!arguments.ranks.prints()) return;
  progress.clear();
  if (!arguments.html.empty()) write_html(arguments.html, verify_page(problem, verified(outcome)));
  print(arguments.json ? json_text(outcome) : table_text(outcome));
  if (const Case* const c = outcome.first_difference()) throw Error(difference_text(problem, *c));
  const ReferenceCheck::Result& reference = outcome.nearest().reference;
  if (reference.share() > 1) {
    throw Error(fmt::format(
        "parameter '{}'{} is {:.3g} of its update away from the float64 reference; tolerance {:.0e}", reference.worst,
        suffix_of(outcome.nearest().workload.options()), reference.max_error, reference.tolerance));
  }
}

}  // namespace

void add_verify_command(CLI::App& app) {
  const auto arguments = std::make_shared<VerifyArguments>();
  CLI::App& command = *app.add_subcommand("verify", "Check N ranks against one, bit for bit, and against float64");
  arguments->model.add_to(command);
  arguments->plans.add_to(command);
  arguments->ranks.add_to(command);
  command.add_option("--steps", arguments->steps, "Steps of every case (default 2; 4 on cuda)")->type_name("N");
  command
      .add_option("--wire", arguments->wire, "bf16 or f32: dtype in which updates travel (default: as the model says)")
      ->type_name("D");
  command
      .add_option(
          "--missing", arguments->missing,
          "on, off or off,on: leave gradients of some parameters out, on all ranks or some (default off; on cuda "
          "both)")
      ->type_name("M");
  command
      .add_option(
          "--spectrum", arguments->spectrum,
          fmt::format("all, or some of {}: of the gradients of matrices (default normal)", run::spectrum_names()))
      ->type_name("S,...");
  add_graph_option(command, arguments->graph, "on, off or on,off (default both where steps can be captured)");
  add_coefficients_option(command, arguments->coefficients);
  add_html_option(command, arguments->html);
  add_json_flag(command, arguments->json);
  command.footer("Example: muster verify gpt2-small --mesh fsdp=2,tp=2 --layers 1");
  command.callback([arguments] { run(*arguments); });
}

}  // namespace muster::cli
