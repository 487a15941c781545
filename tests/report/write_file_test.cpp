#include "report/write_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"

namespace muster::report {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class WriteFile : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directory(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  static std::string read(const fs::path& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  const fs::path folder_ = fs::temp_directory_path() / ("muster_write_file_" + std::to_string(::getpid()));
};

TEST_F(WriteFile, ReplacesAndLeavesNothingBehind) {
  write_file(path("page.html"), "one");
  write_file(path("page.html"), "two");
  EXPECT_EQ(read(path("page.html")), "two");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

// A report that its owner had made private became readable for everyone when it was written again.
TEST_F(WriteFile, KeepsTheModeOfTheFileThatItReplaces) {
  for (const fs::perms mode : {fs::perms(0600), fs::perms(0640), fs::perms(0666)}) {
    write_file(path("page.html"), "one");
    fs::permissions(path("page.html"), mode);
    write_file(path("page.html"), "two");
    EXPECT_EQ(fs::status(path("page.html")).permissions(), mode);
    EXPECT_EQ(read(path("page.html")), "two");
  }
}

TEST_F(WriteFile, FollowsLinks) {
  write_file(path("page.html"), "one");
  fs::create_symlink("page.html", path("link.html"));
  write_file(path("link.html"), "two");
  EXPECT_TRUE(fs::is_symlink(path("link.html")));
  EXPECT_EQ(read(path("page.html")), "two");
}

TEST_F(WriteFile, NamesThePathItCannotWrite) {
  try {
    write_file(path("missing/page.html"), "text");
    FAIL() << "wrote into a folder that does not exist";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), HasSubstr("missing/page.html"));
  }
  EXPECT_THROW(write_file(folder_.string(), "text"), InvalidArgument);
}

TEST_F(WriteFile, WritesIntoDevices) {
  write_file("/dev/null", "text");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

// A full disk was no ResourceError, and one that was full at once was an InvalidArgument.
TEST_F(WriteFile, OnAFullDiskIsTheMachinesFault) {
  try {
    write_file("/dev/full", "text");
    FAIL() << "wrote on a full disk";
  } catch (const ResourceError& error) {
    EXPECT_STREQ(error.what(), "cannot write '/dev/full': No space left on device");
  }
}

}  // namespace
}  // namespace muster::report
