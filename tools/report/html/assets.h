// The style and the scripts of reports: the other files of this folder, embedded by the build (cmake/embed.cmake).
#pragma once

#include <span>
#include <string_view>

namespace muster::report {

struct Asset {
  std::string_view name;  // of the file, without what follows the dot
  std::string_view text;
};

// The style, then the scripts, which are one together: they define functions, and drawReport() is to be called.
std::span<const Asset> assets();

}  // namespace muster::report
