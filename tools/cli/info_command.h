// `muster info`: what this build contains, for reports of problems.
#pragma once

#include <CLI/CLI.hpp>

namespace muster::cli {

void add_info_command(CLI::App& app);

}  // namespace muster::cli
