// The text that comes with the command: data/shakespeare.txt.
#pragma once

#include <string_view>

namespace muster::cli {

std::string_view shipped_text();

}  // namespace muster::cli
