// Standard output of the command.
#pragma once

#include <string_view>

namespace muster::cli {

// Throws Error where the text does not arrive (a full disk).
void print(std::string_view text);

// Standard output is a terminal and nobody objects (NO_COLOR, TERM=dumb).
bool wants_colour();

}  // namespace muster::cli
