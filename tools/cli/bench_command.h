// `muster bench`: measures whole steps, other systems compared with Muster.
#pragma once

#include <CLI/CLI.hpp>

namespace muster::cli {

void add_bench_command(CLI::App& app);

}  // namespace muster::cli
