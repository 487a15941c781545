// Writing a whole file so that a reader sees either the old one or the new one.
#pragma once

#include <string>
#include <string_view>

namespace muster::report {

// Through a temporary beside it; devices and pipes are written straight. Throws InvalidArgument if the path cannot be
// written to, Error if writing fails half-way.
void write_file(const std::string& path, std::string_view text);

}  // namespace muster::report
