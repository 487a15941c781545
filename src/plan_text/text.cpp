#include "plan_text/text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include <fmt/format.h>

namespace muster::plan_text {
namespace {

constexpr std::array<std::string_view, 4> kTimeUnits = {"ns", "µs", "ms", "s"};

// Three significant digits; the next unit takes over before "1000" (or "1024") would have to be printed.
std::string scaled(double value, double step, std::span<const std::string_view> units) {
  size_t unit = 0;
  while (unit + 1 < units.size() && std::abs(value) >= step - 0.5) {
    value /= step;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f} {}", value, units[0]);
  const double magnitude = std::abs(value);
  const int decimals = magnitude >= 99.95 ? 0 : magnitude >= 9.995 ? 1 : 2;
  return fmt::format("{:.{}f} {}", value, decimals, units[unit]);
}

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

bool continues_code_point(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

}  // namespace

std::string bytes_text(int64_t bytes) {
  static constexpr std::array<std::string_view, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  return scaled(static_cast<double>(bytes), 1024, kUnits);
}

std::string time_text(int64_t nanoseconds) { return scaled(static_cast<double>(nanoseconds), 1000, kTimeUnits); }

std::string time_text(int64_t nanoseconds, int64_t resolution) {
  size_t unit = 0;
  double scale = 1;
  while (unit + 1 < kTimeUnits.size() && static_cast<double>(nanoseconds) >= 1000 * scale) {
    scale *= 1000;
    ++unit;
  }
  int decimals = 0;
  for (double step = scale; step > static_cast<double>(std::max<int64_t>(1, resolution)); step /= 10) ++decimals;
  return fmt::format("{:.{}f} {}", static_cast<double>(nanoseconds) / scale, decimals, kTimeUnits[unit]);
}

std::string magnitude_text(int64_t count) {
  static constexpr std::array<std::string_view, 4> kUnits = {"k", "M", "B", "T"};
  if (count < 1000) return fmt::format("{}", count);
  double value = static_cast<double>(count) / 1000;
  size_t unit = 0;
  while (unit + 1 < kUnits.size() && value >= 999.95) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string grouped_text(int64_t count) {
  std::string digits = fmt::format("{}", count);
  const int first = digits[0] == '-' ? 1 : 0;
  for (int at = static_cast<int>(digits.size()) - 3; at > first; at -= 3) digits.insert(static_cast<size_t>(at), ",");
  return digits;
}

std::string counted_text(int64_t count, std::string_view one) {
  return fmt::format("{} {}{}", grouped_text(count), one, count == 1 ? "" : "s");
}

std::string counted_text(int64_t count, std::string_view one, std::string_view many) {
  return fmt::format("{} {}", grouped_text(count), count == 1 ? one : many);
}

std::string percent_text(double ratio) {
  const double percent = ratio * 100;
  const double magnitude = std::abs(percent);
  if (magnitude >= 99.95 || percent == std::round(percent)) return fmt::format("{:.0f} %", percent);
  return fmt::format("{:.{}f} %", percent, magnitude < 0.995 ? 2 : 1);
}

std::string hash_text(uint64_t hash) { return fmt::format("{:016x}", hash); }

std::string printable(std::string_view text) {
  std::string result(text);
  std::replace_if(result.begin(), result.end(), is_control, '?');
  return result;
}

std::string html_escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += is_control(c) ? '?' : c;
    }
  }
  return result;
}

size_t display_width(std::string_view utf8) {
  return utf8.size() - static_cast<size_t>(std::count_if(utf8.begin(), utf8.end(), continues_code_point));
}

std::string truncated(std::string_view utf8, size_t width) {
  if (display_width(utf8) <= width) return std::string(utf8);
  if (width == 0) return {};
  size_t columns = 0;
  size_t end = 0;
  while (end < utf8.size() && (continues_code_point(utf8[end]) || columns++ < width - 1)) ++end;
  return std::string(utf8.substr(0, end)) + "…";
}

BarCells bar_cells(const Bar& bar) {
  if (bar.full <= 0 || bar.cells <= 0) return {};
  const auto part = [&bar](int64_t value) {
    const double share = static_cast<double>(value) / static_cast<double>(bar.full);
    return static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * bar.cells));
  };
  // Rounding the sum, not the parts, keeps bars of equal length equal.
  const int shown = (bar.compute > 0 ? 1 : 0) + (bar.exchange > 0 ? 1 : 0);
  const int total = std::min(bar.cells, std::max(shown, part(bar.compute + bar.exchange)));
  const int most = std::max(0, total - (bar.exchange > 0 ? 1 : 0));
  const int compute = std::clamp(part(bar.compute), std::min(bar.compute > 0 ? 1 : 0, most), most);
  return {bar.exchange > 0 ? compute : total, bar.exchange > 0 ? total - compute : 0};
}

std::string repeated(std::string_view utf8, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += utf8;
  return result;
}

}  // namespace muster::plan_text
