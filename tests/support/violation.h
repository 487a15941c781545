// What the checks of a plan throw.
#pragma once

#include <stdexcept>
#include <utility>

#include <fmt/format.h>

namespace muster::test {

struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <typename... Args>
void require(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw Violation(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace muster::test
