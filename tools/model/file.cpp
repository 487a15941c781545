#include "model/file.h"

#include <filesystem>
#include <fstream>

#include "base/limits.h"
#include "base/text.h"

namespace muster::model {

int64_t file_bytes(const std::string& path) {
  std::error_code error;
  // A pipe or a device would block or never end.
  if (!std::filesystem::is_regular_file(path, error)) base::fail("{}: no such file", base::in_quotes(path));
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) base::fail("{}: {}", base::in_quotes(path), error.message());
  return static_cast<int64_t>(bytes);
}

std::string read_start(const std::string& path, int64_t bytes) {
  std::ifstream stream(path, std::ios::binary);
  std::string text(static_cast<size_t>(bytes), '\0');
  if (!stream || !stream.read(text.data(), bytes)) base::fail("{}: cannot read {} bytes", base::in_quotes(path), bytes);
  return text;
}

std::string read_file(const std::string& path) {
  const int64_t bytes = file_bytes(path);
  if (bytes > base::kMaxFileBytes)
    base::fail("{}: has {} bytes; at most {} are read", base::in_quotes(path), bytes, base::kMaxFileBytes);
  return read_start(path, bytes);
}

}  // namespace muster::model
