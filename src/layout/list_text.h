// Lists in messages: all of a short one, the beginning of a long one.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace muster::layout {

template <typename T>
std::string list_text(const std::vector<T>& values) {
  constexpr size_t kShown = 12;
  std::string text = "[";
  for (size_t i = 0; i < values.size() && i < kShown; ++i) text += (i > 0 ? "," : "") + std::to_string(values[i]);
  if (values.size() > kShown) text += ",... " + std::to_string(values.size()) + " in all";
  return text + "]";
}

}  // namespace muster::layout
