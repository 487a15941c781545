// `--html F`: what a command found out, as a report next to what it prints.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "report/page.h"

namespace muster::cli {

// `names` may add another spelling: "--html,--report".
void add_html_option(CLI::App& command, std::string& file, const std::string& names = "--html");

// Throws InvalidArgument, with the flag in front, if no file could be written there; nothing if `file` is empty.
void check_html(const std::string& file);
void write_html(const std::string& file, const report::Page& page);

}  // namespace muster::cli
