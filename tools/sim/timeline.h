// What every rank does when, in a simulated step.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace muster::sim {

enum class Stream : uint8_t { kCompute, kExchange };

struct Span {
  std::string_view label;  // a literal
  Stream stream = Stream::kCompute;
  int32_t wave = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  int64_t bytes = 0;  // of an exchange, sent and received
};

using Timeline = std::vector<std::vector<Span>>;  // by rank; the spans of a stream do not overlap

}  // namespace muster::sim
