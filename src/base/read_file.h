// Reading files, with the sizes checked first.
#pragma once

#include <cstdint>
#include <string>

namespace muster::base {

// Fails unless `path` is a regular file.
int64_t file_bytes(const std::string& path);

// The first `bytes` bytes; fails if there are fewer.
std::string read_start(const std::string& path, int64_t bytes);

// The whole file; fails past kMaxFileBytes.
std::string read_file(const std::string& path);

}  // namespace muster::base
