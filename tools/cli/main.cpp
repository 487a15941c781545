// The command `muster`. Exit status 0, 2 for bad input, 1 for a failed run; an error is one line on stderr.
#include <exception>
#include <new>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "bench_command.h"
#include "info_command.h"
#include "muster/error.h"
#include "plan_command.h"
#include "presets_command.h"
#include "ranks.h"
#include "simulate_command.h"
#include "train_command.h"
#include "tune_command.h"
#include "verify_command.h"
#include "version.h"

namespace {

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
  reject_empty_values(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);
    const bool unknown = app.get_subcommands().empty() && argc > 1 && argv[1][0] != '-';
    return fail(kBadInput,
                unknown ? fmt::format("\"{}\" is not a subcommand; see muster --help", argv[1]) : error.what());
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
    return fail(kBadInput, error.what());
  } catch (const std::bad_alloc&) {
    return fail(kFailed, "out of memory");
  } catch (const std::exception& error) {
    return fail(kFailed, error.what());
  }
}
