#include "kernels/architectures.h"

#include <algorithm>
#include <charconv>
#include <system_error>

namespace muster::kernels {
namespace {

// An entry is the digits of a compute capability, "a" or "f" for features of that chip or family, "-real" or
// "-virtual".
bool entry_runs_on(std::string_view entry, int major, int minor) {
  int number = 0;
  const char* const end = entry.data() + entry.size();
  const auto [rest, error] = std::from_chars(entry.data(), end, number);
  if (error != std::errc()) return true;
  const std::string_view suffix(rest, static_cast<size_t>(end - rest));
  const int compiled_major = number / 10;
  const int compiled_minor = number % 10;
  if (suffix.starts_with('a')) return major == compiled_major && minor == compiled_minor;
  // Machine code runs on later chips of the same major number; PTX, on all later ones.
  const bool has_ptx = !suffix.ends_with("-real") && !suffix.starts_with('f');
  if (major == compiled_major) return minor >= compiled_minor;
  return has_ptx && major > compiled_major;
}

}  // namespace

bool runs_on(std::string_view compiled, int major, int minor) {
  while (!compiled.empty()) {
    const size_t end = std::min(compiled.find(';'), compiled.size());
    if (entry_runs_on(compiled.substr(0, end), major, minor)) return true;
    compiled.remove_prefix(std::min(end + 1, compiled.size()));
  }
  return false;
}

bool has_sm90a(std::string_view compiled) {
  return compiled.starts_with("90a") || compiled.find(";90a") != std::string_view::npos;
}

}  // namespace muster::kernels
