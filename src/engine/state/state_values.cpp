#include "engine/state/state_values.h"

#include <cstdint>
#include <cstring>

#include <fmt/format.h>

namespace muster::engine {

namespace {

// AdamW's bias corrections read counters as doubles, which are exact up to this. No training comes near.
constexpr int64_t kMostSteps = int64_t{1} << 53;

// Calls refused(element) for each element, and returns the first text that is not empty.
template <typename T, typename Refused>
std::string first_refused(std::span<const std::byte> data, Refused refused) {
  for (size_t at = 0; at + sizeof(T) <= data.size(); at += sizeof(T)) {
    T element;
    std::memcpy(&element, data.data() + at, sizeof element);
    if (std::string text = refused(element); !text.empty()) return text;
  }
  return {};
}

}  // namespace

std::string refused_value(const StateInfo& info, std::span<const std::byte> data) {
  if (info.name.ends_with(":steps") || info.name.ends_with(":updates")) {
    return first_refused<int64_t>(data, [](int64_t count) {
      return count >= 0 && count <= kMostSteps ? std::string() : fmt::format("{}; expected 0 to 2^53", count);
    });
  }
  if (info.name.ends_with(":variance") || info.name.ends_with(":second")) {
    return first_refused<float>(data, [](float mean) {
      return mean < 0 ? fmt::format("{}; expected no negative mean of squares", mean) : std::string();
    });
  }
  return {};
}

}  // namespace muster::engine
