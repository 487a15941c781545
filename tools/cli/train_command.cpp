#include "train_command.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <memory>
#include <ranges>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "arguments.h"
#include "base/limits.h"
#include "base/read_file.h"
#include "base/text.h"
#include "html_option.h"
#include "model/mesh_text.h"
#include "output.h"
#include "plan_choice.h"
#include "plan_text/text.h"
#include "progress.h"
#include "ranks.h"
#include "report/trace.h"
#include "report/write_file.h"
#include "run/memory_need.h"
#include "shipped_text.h"
#include "train/shards.h"
#include "train_output.h"
#include "train_page.h"

namespace muster::cli {
namespace {

struct TrainArguments {
  std::map<std::string_view, std::string> recipe;  // by field
  std::string mesh;
  std::string ranks;
  Ranks processes;
  PlanChoice plan{{.strategies = "global", .waves = "0", .count = PlanChoice::Count::kOne}};
  std::string wave_order;
  std::string elementwise;
  std::string text;
  std::string runs;
  std::string target;
  std::string save;
  std::string save_every;
  std::string eval_every;
  std::string until;
  std::string resume;
  std::string html;
  std::string trace;
  std::vector<std::string> compare;
  bool json = false;
};

train::Recipe read_recipe(const TrainArguments& arguments) {
  train::Recipe recipe;
  if (!arguments.resume.empty()) {
    recipe = for_flag("--resume", [&] { return train::read_position(arguments.resume).recipe; });
  }
  for (const train::RecipeField& field : train::recipe_fields()) {
    const std::string& text = arguments.recipe.at(field.name);
    if (text.empty()) continue;
    for_flag("--" + std::string(field.name), [&] { field.set(recipe, text); });
  }
  train::validate(recipe);
  return recipe;
}

std::string read_mesh(const TrainArguments& arguments) {
  if (!arguments.ranks.empty() && !arguments.mesh.empty()) {
    throw InvalidArgument(flag_text("--ranks", arguments.ranks) + " and " + flag_text("--mesh", arguments.mesh) +
                          " exclude each other");
  }
  if (!arguments.mesh.empty()) return arguments.mesh;
  const int64_t ranks = arguments.ranks.empty() ? std::max(1, this_process().count)
                                                : parse_integer("--ranks", arguments.ranks, {1, base::kMaxRanks});
  return fmt::format("fsdp={}", ranks);
}

PlanOptions read_plan(const TrainArguments& arguments) {
  PlanOptions plan = arguments.plan.one(arguments.processes.cost());
  const auto choose = [&](std::string_view flag, const std::string& text, auto names, auto& value) {
    if (text.empty()) return;
    const auto found = std::ranges::find(names, text, [](const auto& pair) { return std::string(pair.first); });
    if (found == names.end()) {
      throw InvalidArgument(
          fmt::format("{}: {} is none of {}", flag, base::in_quotes(text), fmt::join(std::views::keys(names), ", ")));
    }
    if (plan.strategy != Strategy::kGlobal) {
      throw InvalidArgument(fmt::format("{} {}: is for --strategy global, not {}", flag, text, name(plan.strategy)));
    }
    value = found->second;
  };
  choose("--wave-order", arguments.wave_order,
         std::map<std::string_view, WaveOrder>{{"small_first", WaveOrder::kSmallFirst},
                                               {"small_last", WaveOrder::kSmallLast}},
         plan.wave_order);
  choose("--elementwise", arguments.elementwise,
         std::map<std::string_view, ElementwiseOrder>{{"interleaved", ElementwiseOrder::kInterleaved},
                                                      {"last", ElementwiseOrder::kLast},
                                                      {"first", ElementwiseOrder::kFirst}},
         plan.elementwise);
  return plan;
}

train::Execution read_execution(const TrainArguments& arguments, const std::string& mesh) {
  train::Execution execution;
  execution.axes = model::parse_axes(mesh, "--mesh");
  for_flag("--mesh", [&] { return train::placements(execution.axes); });
  execution.plan = read_plan(arguments);
  // All cores, shared out among the ranks here.
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const int here =
      arguments.processes.comm() == "local" ? Mesh{"ranks", execution.axes, {}}.size() : this_process().local_count;
  execution.threads = arguments.processes.threads(std::max(1, cores / here));
  return execution;
}

std::optional<double> read_target(const TrainArguments& arguments, int64_t runs) {
  if (arguments.target.empty()) return std::nullopt;
  const std::string& text = arguments.target;
  double target = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), target);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(target)) {
    throw InvalidArgument(fmt::format("--target: {} is not a number", base::in_quotes(text)));
  }
  if (runs < 2) throw InvalidArgument(flag_text("--target", text) + ": needs --runs 2 or more");
  return target;
}

train::TrainOptions read_options(const TrainArguments& arguments, int64_t runs) {
  constexpr Range kSteps{1, 10'000'000};
  train::TrainOptions options{
      .save = arguments.save, .resume = arguments.resume, .trace = !arguments.html.empty() || !arguments.trace.empty()};
  if (!arguments.until.empty()) options.until = parse_integer("--until", arguments.until, kSteps);
  if (!arguments.eval_every.empty()) options.eval_every = parse_integer("--eval-every", arguments.eval_every, kSteps);
  if (!arguments.save_every.empty()) {
    options.save_every = parse_integer("--save-every", arguments.save_every, kSteps);
    if (options.save.empty()) throw InvalidArgument(flag_text("--save-every", arguments.save_every) + ": needs --save");
  }
  if (runs > 1 && !options.save.empty()) throw InvalidArgument(flag_text("--save", options.save) + ": is for one run");
  if (runs > 1 && !options.resume.empty())
    throw InvalidArgument(flag_text("--resume", options.resume) + ": is for one run");
  return options;
}

// Tells how it goes: a bar on a terminal and, unless there is to be JSON, a line every now and then.
class Teller {
 public:
  Teller(const TrainOutcome& outcome, const TrainArguments& arguments)
      : outcome_(outcome),
        lines_(!arguments.json && arguments.processes.prints()),
        bar_(arguments.processes.prints() ? Progress::Show::kIfTerminal : Progress::Show::kNever) {}

  void begin_run(size_t run, size_t runs) {
    run_ = run;
    runs_ = runs;
    // Nothing is said before all is known to be well: with the first step.
    heading_ = run == 0 ? train_heading(outcome_) : "";
    if (outcome_.several) heading_ += fmt::format("run {} of {}, seed {}\n", run + 1, runs, outcome_.recipe.seed + run);
  }

  void step(int64_t done, const train::TrainedStep& step) {
    tell(std::exchange(heading_, ""));
    constexpr int64_t kLines = 10;
    const int64_t steps = outcome_.recipe.all_steps();
    const auto tokens = static_cast<double>(outcome_.recipe.batch * outcome_.recipe.model.context);
    const double tokens_per_s = tokens * 1e9 / static_cast<double>(step.total_ns);
    const double share = static_cast<double>(step.optimizer_ns) / static_cast<double>(step.total_ns);
    const double all = static_cast<double>(steps) * static_cast<double>(runs_);
    bar_.update((static_cast<double>(run_) * static_cast<double>(steps) + static_cast<double>(done)) / all,
                fmt::format("loss {:.3f}  {} tok/s  opt {:.0f} %", step.loss,
                            plan_text::grouped_text(std::llround(tokens_per_s)), 100 * share));
    const int64_t stride = std::max<int64_t>(1, steps / kLines);
    if (done == 1 || done % stride == 0 || done == steps) tell(train_line(done, step.loss, tokens_per_s, share));
  }

  void evaluated(const train::HeldOut& one) {
    tell(std::exchange(heading_, ""));
    tell(fmt::format("step {:>5}  held-out loss {:.4f}\n", one.step, one.loss));
  }

  void tell(const std::string& text) {
    if (!lines_ || text.empty()) return;
    bar_.clear();
    print(text);
  }

  void clear() { bar_.clear(); }

 private:
  const TrainOutcome& outcome_;
  bool lines_;
  Progress bar_;
  size_t run_ = 0;
  size_t runs_ = 1;
  std::string heading_;
};

// Memory for the ranks of this process: each gathers all weights, and has a gradient per slot that it computes.
void require_memory(const TrainOutcome& outcome, const train::Corpus& corpus, const Ranks& processes) {
  train::ModelConfig model = outcome.recipe.model;
  model.vocabulary = corpus.vocabulary();
  const int32_t ranks = Mesh{"ranks", outcome.execution.axes, {}}.size();
  int64_t copies = 0;
  for (const int32_t rank : processes.here(ranks)) {
    copies += 1 + train::slots_of(outcome.recipe.slots, rank, ranks).size();
  }
  if (processes.comm() != "local") copies *= this_process().local_count;
  const int64_t available = run::available_memory();
  const int64_t elements = train::map_weights(model).elements;
  if (elements <= available / static_cast<int64_t>(sizeof(float)) / std::max<int64_t>(1, copies)) return;
  throw InvalidArgument(fmt::format(
      "--layers {}, --width {}, --slots {}: {} copies of {} weights do not fit into the {} of memory that this machine "
      "has",
      model.layers, model.width, outcome.recipe.slots, copies, plan_text::grouped_text(elements),
      plan_text::bytes_text(available)));
}

void run(const TrainArguments& arguments) {
  arguments.processes.check();
  if (arguments.processes.cuda()) throw InvalidArgument("--device: 'cuda': the model of train runs on the CPU");
  const int64_t runs = arguments.runs.empty() ? 1 : parse_integer("--runs", arguments.runs, {1, 100'000});
  TrainOutcome outcome;
  outcome.recipe = read_recipe(arguments);
  outcome.mesh = read_mesh(arguments);
  outcome.execution = read_execution(arguments, outcome.mesh);
  outcome.comm = arguments.processes.comm();
  outcome.several = !arguments.runs.empty();
  outcome.target = read_target(arguments, runs);
  const train::TrainOptions options = read_options(arguments, runs);
  if (arguments.processes.prints()) {  // the others need none of it
    for (const std::string& file : arguments.compare) {
      outcome.beside.push_back(for_flag("--compare", [&] { return read_training(file); }));
    }
    check_html(arguments.html);
    if (!arguments.trace.empty()) check_folder("--trace", arguments.trace);
  }
  const std::string text = arguments.text.empty() ? std::string(shipped_text())
                                                  : for_flag("--text", [&] { return base::read_file(arguments.text); });
  const train::Corpus corpus = for_flag("--text", [&] { return train::Corpus(text, outcome.recipe.model.context); });
  const int32_t ranks = Mesh{"ranks", outcome.execution.axes, {}}.size();
  require_memory(outcome, corpus, arguments.processes);
  Teller teller(outcome, arguments);
  arguments.processes.run(ranks, [&](Communicator& communicator, const Device&) {
    const bool first = communicator.rank() == 0;
    train::TrainOptions own = options;
    if (first) {
      own.progress = [&](int64_t done, const train::TrainedStep& step) { teller.step(done, step); };
      own.evaluated = [&](const train::HeldOut& one) { teller.evaluated(one); };
    }
    for (int64_t i = 0; i < runs; ++i) {
      train::Recipe recipe = outcome.recipe;
      recipe.seed += static_cast<uint64_t>(i);
      if (first) teller.begin_run(static_cast<size_t>(i), static_cast<size_t>(runs));
      train::TrainResult result = train::train(recipe, corpus, outcome.execution, communicator, own);
      if (!first) continue;
      teller.tell(train_ending(result));
      outcome.runs.push_back(std::move(result));
    }
  });
  if (!arguments.processes.prints()) return;
  teller.clear();
  teller.tell(train_comparison(outcome));
  if (!arguments.trace.empty()) {
    for_flag("--trace", [&] { report::write_file(arguments.trace, report::trace_json(traced_steps(outcome))); });
  }
  if (!arguments.html.empty()) {
    const report::Page page = train_page(outcome);
    write_html(arguments.html, page);
    teller.tell(fmt::format("\n{}\nreport: {}\n", fmt::join(page.findings, "\n"), arguments.html));
  }
  if (arguments.json) {
    print(train_json(outcome));
  } else if (outcome.several) {
    print(train_statistics(outcome));
  }
}

}  // namespace

void add_train_command(CLI::App& app) {
  const auto arguments = std::make_shared<TrainArguments>();
  CLI::App& command = *app.add_subcommand("train", "Train a small GPT on a text that comes with it, on any ranks");
  command.add_option("--mesh", arguments->mesh, "Ranks by axis: fsdp=4, replicate=4 or replicate=2,fsdp=2")
      ->type_name("AXIS=N,...");
  command.add_option("--ranks", arguments->ranks, "Short for --mesh fsdp=N (default 1, or as many as mpirun started)")
      ->type_name("N");
  arguments->processes.add_to(command, "its share of the cores");
  command.get_option("--device")->description("cpu: the model of train runs on no other");
  arguments->plan.add_to(command);
  command
      .add_option("--wave-order", arguments->wave_order,
                  "small_first (default) or small_last: which matrices go first, with global")
      ->type_name("NAME");
  command
      .add_option("--elementwise", arguments->elementwise,
                  "interleaved (default), first or last: when AdamW goes, with global")
      ->type_name("NAME");
  const train::Recipe defaults;
  for (const train::RecipeField& field : train::recipe_fields()) {
    command
        .add_option("--" + std::string(field.name), arguments->recipe[field.name],
                    fmt::format("{} (default {})", field.help, field.get(defaults)))
        ->type_name(std::string(field.values));
  }
  command.add_option("--text", arguments->text, "Learn this file (default: the one that comes with Muster)")
      ->type_name("FILE");
  command.add_option("--runs", arguments->runs, "Train N times, each with the next seed")->type_name("N");
  command.add_option("--target", arguments->target, "Test whether the mean held-out loss of the runs is below LOSS")
      ->type_name("LOSS");
  command.add_option("--save", arguments->save, "Write a checkpoint at the end")->type_name("DIR");
  command.add_option("--save-every", arguments->save_every, "Also write one every N steps")->type_name("N");
  command.add_option("--eval-every", arguments->eval_every, "Compute the held-out loss every N steps")->type_name("N");
  command.add_option("--until", arguments->until, "Stop after step N, as if interrupted")->type_name("N");
  command
      .add_option("--resume", arguments->resume,
                  "Continue from a checkpoint, on any ranks; flags that are not given are its own")
      ->type_name("DIR");
  add_html_option(command, arguments->html, "--html,--report");
  command.add_option("--trace", arguments->trace, "Write the last step, for Perfetto")->type_name("F.json");
  command.add_option("--compare", arguments->compare, "Compare with trainings whose --json output is in these files")
      ->type_name("F.json")
      ->delimiter(',');
  add_json_flag(command, arguments->json);
  command.footer(
      "Ranks, threads, mesh, strategy, waves and orders do not change a bit of the losses.\nExample: muster train "
      "--ranks 4");
  command.callback([arguments] { run(*arguments); });
}

}  // namespace muster::cli
