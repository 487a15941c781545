// Writing a whole file so that a reader sees either the old one or the new one.
#pragma once

#include <string>
#include <string_view>

namespace muster::report {

// Through a temporary file in the same folder; a file that is replaced keeps its mode. Devices and pipes are written to
// directly. Throws ResourceError if the disk or the machine is at fault, InvalidArgument if the path is.
void write_file(const std::string& path, std::string_view text);

}  // namespace muster::report
