// Figures and words as a person reads them: units, UTF-8 widths, bars.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace muster::plan_text {

std::string bytes_text(int64_t bytes);       // "0 B", "1.50 KiB", "128 MiB"
std::string time_text(int64_t nanoseconds);  // "850 ns", "12.3 µs", "1.24 ms"
// With as many digits as tell apart times that differ by `resolution`.
std::string time_text(int64_t nanoseconds, int64_t resolution);
std::string magnitude_text(int64_t count);                                             // "912", "124.4 M", "396.8 B"
std::string grouped_text(int64_t count);                                               // "61,440"
std::string counted_text(int64_t count, std::string_view one);                         // "1 layer", "2,048 layers"
std::string counted_text(int64_t count, std::string_view one, std::string_view many);  // "1 matrix", "2 matrices"
std::string percent_text(double ratio);                                                // 0.125 -> "12.5 %"
std::string hash_text(uint64_t hash);                                                  // 16 hex digits

// Names come from files: control characters must not reach a terminal. One '?' each.
std::string printable(std::string_view text);

// The five characters that mean something in HTML, and control characters.
std::string html_escaped(std::string_view text);

// Code points, which is columns for everything printed here.
size_t display_width(std::string_view utf8);

// Cut to at most `width` columns, the last of them '…' if anything is missing.
std::string truncated(std::string_view utf8, size_t width);

struct Bar {
  int64_t compute = 0;
  int64_t exchange = 0;
  int64_t full = 1;  // what fills all cells
  int cells = 32;
};
// The two parts of a bar, without the blanks behind it; a part that is not zero is seen.
struct BarCells {
  int compute = 0;
  int exchange = 0;
};
BarCells bar_cells(const Bar& bar);

std::string repeated(std::string_view utf8, int times);

}  // namespace muster::plan_text
