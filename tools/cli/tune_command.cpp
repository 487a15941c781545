#include "tune_command.h"

#include <memory>

#include <fmt/format.h>

#include "arguments.h"
#include "html_option.h"
#include "output.h"
#include "plan_text/text.h"
#include "progress.h"
#include "ranks.h"
#include "report/columns.h"
#include "report/write_file.h"
#include "run/tune.h"
#include "tune_page.h"

namespace muster::cli {
namespace {

constexpr int64_t kMaxRanks = 256;

struct TuneArguments {
  Ranks ranks;
  std::string count;
  std::string output;
  std::string html;
  bool json = false;
};

std::string rate_text(int64_t mbps) { return fmt::format("{:.2f} GB/s", static_cast<double>(mbps) / 1000); }

std::string table_text(const run::TuneResult& result) {
  using plan_text::time_text;
  const auto colour = wants_colour() ? report::Columns::Colour::kOn : report::Columns::Colour::kOff;
  report::Columns rates({"orthogonalize", "batch", "GFLOP/s"});
  for (const auto& rate : result.rates) {
    rates.add({fmt::format("{}×{}", rate.rows, rate.columns), std::to_string(rate.batch),
               fmt::format("{:.1f}", rate.gflops)});
  }
  const CostTable& t = result.table;
  const std::string how = result.exchanges_measured ? "" : "not measured: one rank";
  report::Columns rest({"cost of a rank", "measured", ""});
  rest.add({"start of a batch", time_text(t.batch_ns)});
  rest.add({"memory, momentum and apply", rate_text(t.memory_mbps)});
  rest.add({"exchange", time_text(t.exchange_ns), how});
  rest.add({"message", time_text(t.message_ns), how});
  rest.add({"bandwidth in a node", rate_text(t.intra_node_mbps), how});
  rest.add({"exchange hidden by compute", fmt::format("{} %", t.overlap_percent), how});
  rest.add({"bandwidth between nodes", rate_text(t.inter_node_mbps), "not measured"});
  return rates.text(colour) + "\n" + rest.text(colour);
}

void run(const TuneArguments& arguments) {
  arguments.ranks.check();
  int32_t count = 0;
  if (!arguments.count.empty()) {
    count = static_cast<int32_t>(parse_integer("--ranks", arguments.count, {1, kMaxRanks}));
  }
  check_folder("-o", arguments.output);
  check_html(arguments.html);

  Progress progress(arguments.ranks.prints() ? Progress::Show::kIfTerminal : Progress::Show::kNever);
  arguments.ranks.run(count, [&](Communicator& communicator, const Device& device) {
    run::TuneOptions options{.threads = arguments.ranks.threads()};
    if (communicator.rank() == 0) {
      options.progress = [&](double done, const std::string& next) { progress.update(done, next); };
    }
    const run::TuneResult result = run::tune(communicator, device, options);
    if (communicator.rank() != 0) return;
    progress.clear();
    const std::string json = run::cost_json(result.table);
    for_flag("-o", [&] { report::write_file(arguments.output, json); });
    const std::string where = arguments.ranks.cuda() ? fmt::format("{}, cuda", arguments.ranks.comm())
                                                     : plan_text::counted_text(options.threads, "thread") + " each";
    const std::string how =
        fmt::format("one of {}, {}, all at work", plan_text::counted_text(communicator.size(), "rank"), where);
    if (!arguments.html.empty()) write_html(arguments.html, tune_page(result, how, arguments.output));
    if (arguments.json) {
      print(json);
    } else {
      print(fmt::format("costs of {}\n\n{}\n  use it: --cost {}\n", how, table_text(result), arguments.output));
    }
  });
}

}  // namespace

void add_tune_command(CLI::App& app) {
  const auto arguments = std::make_shared<TuneArguments>();
  CLI::App& command = *app.add_subcommand("tune", "Measure what things cost here, and write a cost table for --cost");
  command.add_option("-o,--output", arguments->output, "Where the table goes")->type_name("FILE")->required();
  command
      .add_option("--ranks", arguments->count, "Ranks that work at once (default 2, on cuda 1, or as mpirun started)")
      ->type_name("N");
  arguments->ranks.add_to(command);
  add_html_option(command, arguments->html);
  command.add_flag("--json", arguments->json, "Print the table that is written and nothing else");
  command.footer(
      "Example: muster tune --ranks 2 -o cost.json && muster plan gpt2-small --mesh fsdp=2 --cost cost.json");
  command.callback([arguments] { run(*arguments); });
}

}  // namespace muster::cli
