// `muster plan`: plans a model and prints the plan.
#pragma once

#include <CLI/CLI.hpp>

namespace muster::cli {

// Adds the subcommand; it runs while `app` parses and throws muster::Error.
void add_plan_command(CLI::App& app);

}  // namespace muster::cli
