#include "base/file.h"

#include <cerrno>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

#include <sys/stat.h>

#include "base/text.h"

namespace muster::base {

std::string path_text(const std::string& path) {
  constexpr size_t kShown = 240;
  size_t begin = path.size() <= kShown ? 0 : path.size() - kShown;
  // Not in the middle of a UTF-8 character.
  while (begin > 0 && begin < path.size() && (static_cast<unsigned char>(path[begin]) & 0xc0) == 0x80) ++begin;
  return (begin == 0 ? "'" : "'...") + escaped(path.substr(begin)) + "'";
}

namespace {

// True if another path or other permissions would not have helped.
bool is_machines_fault(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:  // past RLIMIT_FSIZE or the limit of the file system
    case EIO:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case ESTALE:
    case ETIMEDOUT:
      return true;
    default:
      return false;
  }
}

}  // namespace

void fail_system(const char* verb, const std::string& path, std::error_code error) {
  std::string text = fmt::format("cannot {} {}: {}", verb, path_text(path), error.message());
  if (is_machines_fault(error.value())) throw ResourceError(std::move(text));
  throw InvalidArgument(std::move(text));
}

void fail_system(const char* verb, const std::string& path) {
  fail_system(verb, path, std::error_code(errno, std::generic_category()));
}

File::File(std::string path, int flags, const char* verb) : path_(std::move(path)) {
  do {
    descriptor_ = ::open(path_.c_str(), flags | O_CLOEXEC, 0666);
  } while (descriptor_ < 0 && errno == EINTR);
  if (descriptor_ < 0) fail_system(verb, path_);
}

File File::create(std::string path) { return {std::move(path), O_WRONLY | O_CREAT | O_EXCL, "create"}; }

File File::open_to_write(std::string path) { return {std::move(path), O_WRONLY, "open"}; }

File File::open_to_read(std::string path) {
  File file(std::move(path), O_RDONLY | O_NONBLOCK, "open");
  struct stat status {};
  if (::fstat(file.descriptor_, &status) != 0) fail_system("look at", file.path_);
  if (!S_ISREG(status.st_mode)) fail("{} is not a regular file", path_text(file.path_));
  return file;
}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

File::File(File&& other) noexcept : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

int64_t File::bytes() const {
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) fail_system("look at", path_);
  return status.st_size;
}

void File::resize(int64_t bytes) const {
  int result = 0;
  do {
    result = ::ftruncate(descriptor_, bytes);
  } while (result != 0 && errno == EINTR);
  if (result != 0) fail_system("write", path_);
}

void File::write_at(int64_t offset, const void* data, int64_t bytes) const {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::pwrite(descriptor_, from, static_cast<size_t>(bytes), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail_system("write", path_);
    from += written;
    offset += written;
    bytes -= written;
  }
}

void File::read_at(int64_t offset, void* data, int64_t bytes) const {
  auto* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::pread(descriptor_, to, static_cast<size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_system("read", path_);
    if (got == 0) fail("{} ends at byte {}, {} before what is needed", path_text(path_), offset, bytes);
    to += got;
    offset += got;
    bytes -= got;
  }
}

void File::finish() {
  if (::fsync(descriptor_) != 0) fail_system("write", path_);
  if (::close(std::exchange(descriptor_, -1)) != 0) fail_system("write", path_);
}

void sync_directory(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) fail_system("open", path);
  const int result = ::fsync(descriptor);
  const std::error_code error(errno, std::generic_category());
  ::close(descriptor);
  // Some file systems cannot sync a directory.
  if (result != 0 && error.value() != EINVAL) fail_system("write", path, error);
}

}  // namespace muster::base
