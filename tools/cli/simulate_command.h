// `muster simulate`: what a step of a model would take on a cluster, with several strategies.
#pragma once

#include <CLI/CLI.hpp>

namespace muster::cli {

// Adds the subcommand; it runs while `app` parses and throws muster::Error.
void add_simulate_command(CLI::App& app);

}  // namespace muster::cli
