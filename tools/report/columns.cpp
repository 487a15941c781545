#include "report/columns.h"

#include <algorithm>

#include "plan_text/text.h"

namespace muster::report {

Columns::Columns(std::vector<std::string> heads) { rows_.push_back(std::move(heads)); }

void Columns::add(std::vector<std::string> row) {
  row.resize(rows_.front().size());
  rows_.push_back(std::move(row));
}

std::string Columns::text(Colour colour) const {
  std::vector<size_t> widths(rows_.front().size());
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], plan_text::display_width(row[c]));
  }
  std::string out;
  size_t total = 2;
  for (const size_t width : widths) total += width + 2;
  for (const auto& row : rows_) {
    const bool head = &row == &rows_.front();
    std::string line = "  ";
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string blank(widths[c] - plan_text::display_width(row[c]), ' ');
      line += c == 0 ? row[c] + blank : "  " + blank + row[c];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += head && colour == Colour::kOn ? "\x1b[2m" + line + "\x1b[0m\n" : line + "\n";
    if (head) out += "  " + plan_text::repeated("─", static_cast<int>(total) - 4) + "\n";
  }
  return out;
}

}  // namespace muster::report
