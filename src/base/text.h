// Names and numbers in text, and the one-line errors about them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "muster/error.h"

namespace muster::base {

// Throws InvalidArgument.
template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw InvalidArgument(fmt::format(format, std::forward<Args>(args)...));
}

// Control characters as \xNN, so that a message stays one line whatever a file holds.
std::string escaped(std::string_view text);

// Escaped; of text longer than 80 bytes, the beginning and "...".
std::string shortened(std::string_view text);
// The same in single quotes.
std::string in_quotes(std::string_view text);

// Lists in messages: all of a short one, the beginning of a long one.
template <typename T>
std::string list_text(const std::vector<T>& values) {
  constexpr size_t kShown = 12;
  std::string text = "[";
  for (size_t i = 0; i < values.size() && i < kShown; ++i) text += (i > 0 ? "," : "") + std::to_string(values[i]);
  if (values.size() > kShown) text += ",... " + std::to_string(values.size()) + " in all";
  return text + "]";
}

// Fails unless `name` is 1 to kMaxNameBytes bytes without control characters. `what` as in "mesh name".
void check_name(std::string_view name, std::string_view where, std::string_view what);

// A decimal number without sign or space, at most 2^63 - 1.
std::optional<int64_t> parse_integer(std::string_view text);

std::vector<std::string_view> split(std::string_view text, char separator);

// '*' stands for any run of characters, '?' for one.
bool glob_matches(std::string_view pattern, std::string_view text);

}  // namespace muster::base
