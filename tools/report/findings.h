// What was found, in sentences: a report begins with them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "report/page.h"

namespace muster::report {

struct StepTime {
  std::string name{};
  int64_t ns = 0;
};

// "global has the shortest optimizer step: 2.83 ms (predicted). chunked takes 1.41× as long." At least one step;
// `what` is "optimizer step" there, and `how` "predicted".
std::string fastest_words(std::span<const StepTime> steps, std::string_view what, std::string_view how);

struct Padding {
  std::string name{};
  int64_t padding_bytes = 0;
  int64_t bytes_sent = 0;  // padding included; 0: not known
};

// "Zeros sent as padding per step: chunked 3.00 MiB (20 % of its bytes); global none." At least one.
std::string padding_words(std::span<const Padding> strategies);
std::vector<Padding> padding_of(std::span<const StrategyRow> rows);

std::string list_words(std::span<const std::string> names);  // "a, b and c"

}  // namespace muster::report
