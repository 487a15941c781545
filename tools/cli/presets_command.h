// `muster presets`: the models that come with Muster.
#pragma once

#include <CLI/CLI.hpp>

namespace muster::cli {

void add_presets_command(CLI::App& app);

}  // namespace muster::cli
