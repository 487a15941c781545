#include "base/read_file.h"

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/limits.h"
#include "base/text.h"

namespace muster::base {

int64_t file_bytes(const std::string& path) {
  std::error_code error;
  // A pipe or a device would block or never end.
  if (!std::filesystem::is_regular_file(path, error)) fail("{}: no such file", path_text(path));
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) fail("{}: {}", path_text(path), error.message());
  return static_cast<int64_t>(bytes);
}

std::string read_start(const std::string& path, int64_t bytes) {
  std::ifstream stream(path, std::ios::binary);
  std::string text(static_cast<size_t>(bytes), '\0');
  if (!stream || !stream.read(text.data(), bytes)) fail("{}: cannot read {} bytes", path_text(path), bytes);
  return text;
}

std::string read_file(const std::string& path) {
  const int64_t bytes = file_bytes(path);
  if (bytes > kMaxFileBytes) fail("{}: has {} bytes; at most {} are read", path_text(path), bytes, kMaxFileBytes);
  return read_start(path, bytes);
}

}  // namespace muster::base
