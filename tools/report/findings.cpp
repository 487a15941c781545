#include "report/findings.h"

#include <algorithm>

#include <fmt/format.h>

#include "plan_text/text.h"

namespace muster::report {

std::string list_words(std::span<const std::string> names) {
  std::string out;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) out += i + 1 == names.size() ? " and " : ", ";
    out += names[i];
  }
  return out;
}

std::string fastest_words(std::span<const StepTime> steps, std::string_view what, std::string_view how) {
  const StepTime fastest = *std::ranges::min_element(steps, {}, &StepTime::ns);
  const std::string time = plan_text::time_text(fastest.ns);
  if (steps.size() == 1) return fmt::format("{} takes {} per {} ({}).", fastest.name, time, what, how);
  std::vector<StepTime> sorted(steps.begin(), steps.end());
  std::ranges::stable_sort(sorted, {}, &StepTime::ns);
  std::vector<std::string> first;
  std::vector<std::string> slower;
  for (const StepTime& step : sorted) {
    // Times that read alike are not told apart.
    if (plan_text::time_text(step.ns) == time) {
      first.push_back(step.name);
      continue;
    }
    const double ratio = static_cast<double>(step.ns) / static_cast<double>(std::max<int64_t>(1, fastest.ns));
    slower.push_back(fmt::format("{} {}{:.2f}×", step.name, slower.empty() ? "takes " : "", ratio));
    if (slower.size() == 1) slower.back() += " as long";
  }
  std::string out = fmt::format("{} {} the shortest {}: {} ({}).", list_words(first),
                                first.size() == 1 ? "has" : "have", what, time, how);
  if (!slower.empty()) out += fmt::format(" {}.", list_words(slower));
  return out;
}

std::string padding_words(std::span<const Padding> strategies) {
  std::vector<std::string> with;
  std::vector<std::string> without;
  for (const Padding& one : strategies) {
    if (one.padding_bytes == 0) {
      without.push_back(one.name);
      continue;
    }
    std::string words = fmt::format("{} {}", one.name, plan_text::bytes_text(one.padding_bytes));
    if (one.bytes_sent > 0) {
      const double share = static_cast<double>(one.padding_bytes) / static_cast<double>(one.bytes_sent);
      words += fmt::format(" ({}{})", plan_text::percent_text(share), with.empty() ? " of its bytes" : "");
    }
    with.push_back(std::move(words));
  }
  if (with.empty()) {
    return fmt::format("{} {} no padding.", list_words(without), without.size() == 1 ? "sends" : "send");
  }
  const std::string none = without.empty() ? "" : fmt::format("; {} none", list_words(without));
  return fmt::format("Zeros sent as padding per step: {}{}.", list_words(with), none);
}

std::vector<Padding> padding_of(std::span<const StrategyRow> rows) {
  std::vector<Padding> out;
  for (const StrategyRow& row : rows) out.push_back({row.strategy, row.padding_bytes, row.bytes_sent});
  return out;
}

}  // namespace muster::report
