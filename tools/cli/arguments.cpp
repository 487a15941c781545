#include "arguments.h"

#include <charconv>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/file.h"
#include "base/text.h"
#include "muster/group.h"

namespace muster::cli {

int64_t parse_integer(std::string_view flag, std::string_view text, Range range) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = end == text.data() + text.size() && !text.empty();
  if (error == std::errc::invalid_argument || !whole) {
    throw InvalidArgument(fmt::format("{}: {} is not an integer", flag, base::in_quotes(text)));
  }
  if (error == std::errc::result_out_of_range || value < range.low || value > range.high) {
    throw InvalidArgument(
        fmt::format("{}: {} is not between {} and {}", flag, base::shortened(text), range.low, range.high));
  }
  return value;
}

std::vector<int64_t> parse_integers(std::string_view flag, std::string_view text, Range range) {
  std::vector<int64_t> values;
  while (true) {
    const size_t comma = text.find(',');
    values.push_back(parse_integer(flag, text.substr(0, comma), range));
    if (comma == std::string_view::npos) return values;
    text.remove_prefix(comma + 1);
  }
}

bool parse_switch(std::string_view flag, std::string_view text) {
  if (text == "on") return true;
  if (text == "off") return false;
  throw InvalidArgument(fmt::format("{}: {} is neither on nor off", flag, base::in_quotes(text)));
}

std::vector<bool> parse_switches(std::string_view flag, std::string_view text) {
  const size_t comma = text.find(',');
  const bool first = parse_switch(flag, text.substr(0, comma));
  if (comma == std::string_view::npos) return {first};
  const bool second = parse_switch(flag, text.substr(comma + 1));
  if (first == second) throw InvalidArgument(fmt::format("{}: {} says one thing twice", flag, base::in_quotes(text)));
  return {first, second};
}

std::pair<std::string, int64_t> parse_setting(std::string_view flag, std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    throw InvalidArgument(fmt::format("{}: {} is not NAME=VALUE", flag, base::in_quotes(text)));
  }
  const std::string name(text.substr(0, equals));
  const std::string context = flag_text(flag, name);
  return {name, parse_integer(context, text.substr(equals + 1), {std::numeric_limits<int64_t>::min()})};
}

void add_graph_option(CLI::App& command, std::string& value, const std::string& values) {
  command.add_option("--graph", value, fmt::format("{}: on cuda, capture a step once and replay it", values))
      ->type_name("G");
}

void add_json_flag(CLI::App& command, bool& value) {
  command.add_flag("--json", value, "Print one JSON object and nothing else");
}

void add_coefficients_option(CLI::App& command, std::string& value) {
  command
      .add_option("--coefficients", value,
                  fmt::format("Coefficients of Newton-Schulz: {} (default polar_express)",
                              fmt::join(coefficient_names(), ", ")))
      ->type_name("NAME");
}

void check_folder(std::string_view flag, const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    throw InvalidArgument(fmt::format("{}: {} is a folder", flag, base::path_text(path)));
  }
  if (error == std::errc::filename_too_long) {
    throw InvalidArgument(fmt::format("{}: {}: {}", flag, base::path_text(path), error.message()));
  }
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty() && !std::filesystem::is_directory(folder, error)) {
    throw InvalidArgument(fmt::format("{}: {}: there is no such folder", flag, base::path_text(path)));
  }
}

std::string flag_text(std::string_view flag, std::string_view value) {
  return fmt::format("{} {}", flag, base::shortened(value));
}

std::string error_text(const std::exception& error) {
  const auto* known = dynamic_cast<const Error*>(&error);
  const bool cap = known != nullptr && known->code() == ErrorCode::kScratchCapTooSmall;
  return std::string(cap ? "--scratch-mib: " : "") + error.what();
}

std::string one_line(std::string_view text) {
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.remove_suffix(1);
  std::string line(text);
  for (char& c : line) {
    if (c == '\n' || c == '\t') c = ' ';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return line;
}

}  // namespace muster::cli
