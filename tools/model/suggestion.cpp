#include "model/suggestion.h"

#include <algorithm>
#include <numeric>

#include <fmt/format.h>

namespace muster::model {
namespace {

constexpr size_t kLongest = 64;  // the cost grows with its square

// Damerau-Levenshtein distance, without edits between swapped characters.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1);
  std::vector<size_t> last(b.size() + 1);
  std::vector<size_t> row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

}  // namespace

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  if (word.size() > kLongest) return "";
  size_t least = kLongest;
  const std::string* nearest = nullptr;
  for (const std::string& name : known) {
    const size_t edits = distance(word, name);
    if (edits >= least || 3 * edits > std::max(word.size(), name.size())) continue;
    least = edits;
    nearest = &name;
  }
  return nearest == nullptr ? "" : fmt::format("; did you mean '{}'?", *nearest);
}

}  // namespace muster::model
