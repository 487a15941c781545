#include "report/write_file.h"

#include <cerrno>
#include <cstdio>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>

#include <fmt/format.h>
#include <sys/stat.h>

#include "base/file.h"

namespace muster::report {
namespace {

// Zero, or errno.
int write_all(int file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

void write_and_close(const std::string& path, int file, std::string_view text) {
  int error = write_all(file, text);
  if (::close(file) != 0 && error == 0) error = errno;
  if (error != 0) base::fail_system("write", path, std::error_code(error, std::generic_category()));
}

}  // namespace

void write_file(const std::string& path, std::string_view text) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    // A rename would replace the device node itself.
    const int file = ::open(path.c_str(), O_WRONLY | O_CLOEXEC);
    if (file < 0) base::fail_system("write", path);
    write_and_close(path, file, text);
    return;
  }
  // Follow links, so that the file changes and not the link to it.
  const fs::path target = fs::exists(status) ? fs::canonical(path, ignored) : fs::path(path);
  constexpr mode_t kOwnerOnly = 0600;
  constexpr mode_t kEveryone = 0666;  // as far as the umask allows
  struct stat before {};
  const bool replaces = ::stat(target.c_str(), &before) == 0;
  const std::string temporary = fmt::format("{}.{}.tmp", target.string(), ::getpid());
  const int file =
      ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, replaces ? kOwnerOnly : kEveryone);
  if (file < 0) base::fail_system("write", path);
  try {
    if (replaces && ::fchmod(file, before.st_mode & 07777) != 0) {
      const std::error_code error(errno, std::generic_category());
      ::close(file);
      base::fail_system("write", path, error);
    }
    write_and_close(path, file, text);
    if (std::rename(temporary.c_str(), target.c_str()) != 0) base::fail_system("write", path);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

}  // namespace muster::report
