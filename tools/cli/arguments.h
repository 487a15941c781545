// Flags and their values. An error names the flag and the value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "muster/error.h"

namespace muster::cli {

struct Range {
  int64_t low = 0;
  int64_t high = std::numeric_limits<int64_t>::max();
};

// All throw InvalidArgument.
int64_t parse_integer(std::string_view flag, std::string_view text, Range range);
std::vector<int64_t> parse_integers(std::string_view flag, std::string_view text, Range range);  // "1,10,16"
bool parse_switch(std::string_view flag, std::string_view text);                                 // "on" or "off"
std::vector<bool> parse_switches(std::string_view flag, std::string_view text);                  // "on,off"
std::pair<std::string, int64_t> parse_setting(std::string_view flag, std::string_view text);     // "experts=60"

// Flags of the commands that take steps. `values` are those that the command accepts, and its default.
void add_graph_option(CLI::App& command, std::string& value, const std::string& values);
void add_coefficients_option(CLI::App& command, std::string& value);

void add_json_flag(CLI::App& command, bool& value);

// That a file could be written there, as far as its folder tells: what took minutes to measure should not be lost.
void check_folder(std::string_view flag, const std::string& path);

// "--waves 2", for errors; a long value is cut.
std::string flag_text(std::string_view flag, std::string_view value);

// One line that is safe on a terminal, whatever a name in it contained.
std::string one_line(std::string_view text);

// What an error says, with the flag in front if the library's code tells which.
std::string error_text(const std::exception& error);

// Runs `use`; an InvalidArgument or ResourceError that it throws gets the flag in front.
template <typename Use>
auto for_flag(std::string_view flag, Use use) {
  try {
    return use();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(error.failure().within(std::string(flag)));
  } catch (const ResourceError& error) {
    throw ResourceError(error.failure().within(std::string(flag)));
  }
}

// "global,routed", each name through `parse`, none twice.
template <typename Parse>
auto parse_names(std::string_view flag, std::string_view text, Parse parse) {
  std::vector<decltype(parse(text))> values;
  while (true) {
    const size_t comma = text.find(',');
    const auto value = for_flag(flag, [&] { return parse(text.substr(0, comma)); });
    if (std::ranges::find(values, value) != values.end()) {
      throw InvalidArgument(std::string(flag) + ": " + std::string(name(value)) + " is named twice");
    }
    values.push_back(value);
    if (comma == std::string_view::npos) return values;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace muster::cli
