// `muster tune`: measures what things cost on this machine and writes a cost table.
#pragma once

#include <CLI/CLI.hpp>

namespace muster::cli {

void add_tune_command(CLI::App& app);

}  // namespace muster::cli
