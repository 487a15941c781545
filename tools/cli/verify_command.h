// `muster verify`: N ranks against one rank, bit for bit, and one rank against the float64 reference.
#pragma once

#include <CLI/CLI.hpp>

namespace muster::cli {

void add_verify_command(CLI::App& app);

}  // namespace muster::cli
