#include "train/checkpoint.h"

#include <atomic>
#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "muster/communicator.h"
#include "muster/error.h"

namespace {

std::atomic<int> mkdir_error{0};

}  // namespace

// Takes the place of the C library's in this program: a full disk on request.
extern "C" int mkdir(const char* path, mode_t mode) noexcept {
  if (mkdir_error == 0) return static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
  errno = mkdir_error;
  return -1;
}

namespace muster::train {
namespace {

namespace fs = std::filesystem;

// A disk that was full from the start was reported as a bad value of --save.
TEST(MakeFolder, OnAFullDiskIsTheMachinesFault) {
  const auto alone = std::move(make_local_communicators(1).front());
  const std::string folder =
      (fs::temp_directory_path() / ("muster_make_folder_" + std::to_string(::getpid()))).string();
  mkdir_error = ENOSPC;
  try {
    make_folder(folder, *alone);
    ADD_FAILURE() << "made a folder on a full disk";
  } catch (const ResourceError& error) {
    EXPECT_EQ(error.what(), "--save: cannot create '" + folder + "': No space left on device");
  }
  mkdir_error = EACCES;
  EXPECT_THROW(make_folder(folder, *alone), InvalidArgument);
  mkdir_error = 0;
  make_folder(folder, *alone);
  EXPECT_TRUE(fs::is_empty(folder));
  fs::remove(folder);
}

}  // namespace
}  // namespace muster::train
