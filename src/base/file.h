// Files by position, for many ranks at once. What the system refuses is an InvalidArgument with the path and its words.
#pragma once

#include <cstdint>
#include <string>

namespace muster::base {

class File {
 public:
  // For writing; nothing of that name may exist.
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
  void read_at(int64_t offset, void* data, int64_t bytes) const;  // fails if the file ends before
  // To the disk, then closes: a full disk may show here first.
  void finish();

 private:
  File(std::string path, int flags, const char* verb);

  std::string path_;
  int descriptor_ = -1;
};

// In quotes and whole, however long: the name is at the end. Control characters as \xNN.
std::string path_text(const std::string& path);

// Throws InvalidArgument: cannot <verb> '<path>': what errno says.
[[noreturn]] void fail_system(const char* verb, const std::string& path);

// Makes names that were created, renamed or removed in it last.
void sync_directory(const std::string& path);

}  // namespace muster::base
