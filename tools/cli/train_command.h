// `muster train`: a small GPT learns a text.
#pragma once

#include <CLI/CLI.hpp>

namespace muster::cli {

void add_train_command(CLI::App& app);

}  // namespace muster::cli
