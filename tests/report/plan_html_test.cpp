#include "report/plan_html.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"
#include "report/sample.h"
#include "report/write_file.h"

namespace muster::report {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(PlanHtml, IsOnePageWithoutAnythingFromElsewhere) {
  const Sample sample = make_sample();
  const std::string page = plan_html(sample.report());
  EXPECT_THAT(page, HasSubstr("<!DOCTYPE html>"));
  EXPECT_THAT(page, HasSubstr("</html>"));
  EXPECT_THAT(page, HasSubstr("2×256×64, 4×64×64"));
  EXPECT_THAT(page, HasSubstr("rank 3: 320 µs compute, 80.0 µs exchange"));
  for (const char* outside : {"http:", "https:", "<script", "<link", "@import", "url("}) {
    EXPECT_THAT(page, Not(HasSubstr(outside)));
  }
}

TEST(PlanHtml, EscapesEveryName) {
  Sample sample = make_sample();
  sample.problem.model = "<script>alert('x')</script>";
  sample.problem.meshes[0].axes[0].name = "a&b";
  sample.cost.device = "\"><img>";
  const std::string page = plan_html(sample.report());
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("<img")));
  EXPECT_THAT(page, HasSubstr("a&amp;b=4"));
}

TEST(PlanHtml, ThousandsOfRanksShareBars) {
  const Sample sample = make_sample({.ranks = 2048, .waves = 12});
  const std::string page = plan_html(sample.report());
  EXPECT_THAT(page, HasSubstr("each bar is the slowest of 8 neighbouring ranks"));
  EXPECT_THAT(page, HasSubstr("rank 2047:"));
  EXPECT_LE(count(page, "<rect"), 256u * 2 + 12);
}

TEST(PlanHtml, ManyWavesAreCut) {
  const Sample sample = make_sample({.ranks = 3, .waves = 500});
  const std::string page = plan_html(sample.report());
  EXPECT_THAT(page, HasSubstr("… 436 more"));
  EXPECT_THAT(page, HasSubstr("<td>55<td>"));
  EXPECT_THAT(page, Not(HasSubstr("<td>56<td>")));
  EXPECT_THAT(page, HasSubstr("<td>499<td>"));
}

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
  EXPECT_THROW(write_file("/dev/full", "text"), Error);
}

}  // namespace
}  // namespace muster::report
