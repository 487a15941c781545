// The command `muster`. Exit status 0, 2 for bad input, 1 for a failed run; an error is one line on stderr.
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "arguments.h"
#include "base/text.h"
#include "bench_command.h"
#include "info_command.h"
#include "model/suggestion.h"
#include "muster/error.h"
#include "output.h"
#include "plan_command.h"
#include "presets_command.h"
#include "ranks.h"
#include "simulate_command.h"
#include "train_command.h"
#include "tune_command.h"
#include "verify_command.h"
#include "version.h"

namespace {

using muster::model::did_you_mean;

constexpr int kFailed = 1;
constexpr int kBadInput = 2;

int fail(int status, std::string_view message) {
  muster::cli::report_error(message);
  return status;
}

// A script whose variable is empty passes "": that is a mistake, not a default.
void reject_empty_values(CLI::App& app) {
  const auto check = [](const std::string& value) { return value.empty() ? "must not be empty" : std::string(); };
  for (CLI::App* command : app.get_subcommands({})) {
    for (CLI::Option* option : command->get_options()) {
      if (option->get_expected_max() > 0) option->check(check);
    }
  }
}

std::string help_of(const CLI::App& app) {
  return app.get_formatter()->make_help(&app, "muster", CLI::AppFormatMode::Normal);
}

std::vector<std::string> names_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

std::string not_a_command(const CLI::App& app, const std::string& name) {
  return fmt::format("{} is not a command{}; see muster help", muster::base::in_quotes(name),
                     did_you_mean(name, names_of(app)));
}

void add_help_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand("help", "Show this help, or that of a command");
  const auto name = std::make_shared<std::string>();
  command.add_option("COMMAND", *name, "The command")->type_name("");
  command.callback([name, &app] {
    if (name->empty()) return muster::cli::print(help_of(app));
    const std::vector<CLI::App*> named = app.get_subcommands([&](const CLI::App* c) { return c->get_name() == *name; });
    if (named.empty()) throw muster::InvalidArgument(not_a_command(app, *name));
    const CLI::App* const of = named.front();
    muster::cli::print(of->get_formatter()->make_help(of, "muster " + *name, CLI::AppFormatMode::Normal));
  });
}

// What CLI11 says, or a suggestion if a command or flag is misspelt.
std::string text_of(const CLI::ParseError& error, const CLI::App& app, const char* first) {
  const std::vector<const CLI::App*> chosen = app.get_subcommands([](const CLI::App* c) { return c->parsed(); });
  if (chosen.empty() && first[0] != '-') return not_a_command(app, first);
  const CLI::App& command = chosen.empty() ? app : *chosen.front();
  for (const std::string& word : command.remaining()) {
    const std::string flag = word.substr(0, word.find('='));
    if (!flag.starts_with("--")) continue;
    std::vector<std::string> known;
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    }
    return fmt::format("{}: {} has no such flag{}", muster::base::shortened(flag),
                       chosen.empty() ? "muster" : "muster " + command.get_name(), did_you_mean(flag, known));
  }
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr && !command.remaining().empty()) {
    return fmt::format("{} was not expected", muster::base::in_quotes(command.remaining().front()));
  }
  return error.what();
}

int run(int argc, char** argv) {
  CLI::App app("Muon and NorMuon across any number of ranks, for models sharded in any way", "muster");
  app.set_version_flag("--version", fmt::format("muster {}", muster::kVersion), "Print the version");
  app.require_subcommand(1);
  app.get_formatter()->column_width(26);
  muster::cli::add_plan_command(app);
  muster::cli::add_presets_command(app);
  muster::cli::add_bench_command(app);
  muster::cli::add_verify_command(app);
  muster::cli::add_simulate_command(app);
  muster::cli::add_train_command(app);
  muster::cli::add_tune_command(app);
  muster::cli::add_info_command(app);
  add_help_command(app);
  reject_empty_values(app);
  if (argc < 2) {
    muster::cli::print(help_of(app));
    return 0;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    return fail(kBadInput, text_of(error, app, argv[1]));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const muster::cli::Reported& reported) {
    return reported.status;
  } catch (const muster::InvalidArgument& error) {
    return fail(kBadInput, muster::cli::error_text(error));
  } catch (const std::bad_alloc&) {
    return fail(kFailed, "out of memory");
  } catch (const std::exception& error) {
    return fail(kFailed, error.what());
  }
}
