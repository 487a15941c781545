// `muster bench`: measures whole steps, today's systems beside Muster.
#pragma once

#include <CLI/CLI.hpp>

namespace muster::cli {

void add_bench_command(CLI::App& app);

}  // namespace muster::cli
