// The files of presets/, embedded by the build (cmake/embed.cmake).
#pragma once

#include <span>
#include <string_view>

namespace muster::model {

struct PresetText {
  std::string_view name;  // of the file, without .json
  std::string_view json;
};

// In order of name. The texts live as long as the program.
std::span<const PresetText> preset_texts();

}  // namespace muster::model
