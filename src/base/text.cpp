#include "base/text.h"

#include <algorithm>
#include <charconv>
#include <iterator>

#include "base/limits.h"

namespace muster::base {

namespace {

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

}  // namespace

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (is_control(c)) {
      fmt::format_to(std::back_inserter(result), "\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      result += c;
    }
  }
  return result;
}

std::string shortened(std::string_view text) {
  constexpr size_t kShown = 80;
  size_t end = std::min(text.size(), kShown);
  // Not in the middle of a UTF-8 character.
  while (end < text.size() && end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return escaped(text.substr(0, end)) + (end < text.size() ? "..." : "");
}

std::string in_quotes(std::string_view text) { return "'" + shortened(text) + "'"; }

void check_name(std::string_view name, std::string_view where, std::string_view what) {
  if (name.empty()) fail("{}: the {} is empty", where, what);
  if (name.size() > static_cast<size_t>(kMaxNameBytes)) {
    fail("{}: the {} {} has {} bytes; at most {} are allowed", where, what, in_quotes(name), name.size(),
         kMaxNameBytes);
  }
  for (const char c : name) {
    if (is_control(c)) fail("{}: the {} {} has a control character", where, what, in_quotes(name));
  }
}

std::optional<int64_t> parse_integer(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.front() == '-') return std::nullopt;
  return value;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

bool glob_matches(std::string_view pattern, std::string_view text) {
  size_t p = 0;
  size_t t = 0;
  size_t star = std::string_view::npos;  // the last '*' met, and how far it reaches
  size_t reach = 0;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      reach = t;
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t])) {
      ++p;
      ++t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++reach;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

}  // namespace muster::base
