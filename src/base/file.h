// Files read and written by position, for many ranks at once. A failed system call throws an error with the path and
// the system's message: ResourceError if the disk or the machine is at fault, InvalidArgument if the path is.
#pragma once

#include <cstdint>
#include <string>
#include <system_error>

namespace muster::base {

class File {
 public:
  // Opens a new file to write. Fails if the name exists.
  static File create(std::string path);
  static File open_to_write(std::string path);
  // Fails unless it is a regular file: a pipe would block.
  static File open_to_read(std::string path);

  ~File();
  File(File&& other) noexcept;
  File& operator=(File&&) = delete;

  const std::string& path() const { return path_; }
  int64_t bytes() const;
  void resize(int64_t bytes) const;
  void write_at(int64_t offset, const void* data, int64_t bytes) const;
  void read_at(int64_t offset, void* data, int64_t bytes) const;  // fails if the file is shorter
  // Syncs to the disk, then closes. A full disk may be reported only here.
  void finish();

 private:
  File(std::string path, int flags, const char* verb);

  std::string path_;
  int descriptor_ = -1;
};

// Escaped and in quotes. Of a path longer than 240 bytes, the end, where the file's name is.
std::string path_text(const std::string& path);

// Throws ResourceError or InvalidArgument, as the error or errno says: cannot <verb> '<path>': its text.
[[noreturn]] void fail_system(const char* verb, const std::string& path, std::error_code error);
[[noreturn]] void fail_system(const char* verb, const std::string& path);

// Makes the creation, renaming and removal of its files durable.
void sync_directory(const std::string& path);

}  // namespace muster::base
