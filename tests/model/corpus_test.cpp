// Everything the fuzzers found worth keeping, through the same entry points.
#include <filesystem>
#include <fstream>
#include <iterator>

#include <gtest/gtest.h>

#include "../../fuzz/entry_points.h"

namespace muster::fuzz {
namespace {

void replay(const std::string& kind, void (*feed)(std::string_view)) {
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(MUSTER_SOURCE_DIR) + "/tests/corpus/" + kind)) {
    SCOPED_TRACE(entry.path().filename().string());
    std::ifstream stream(entry.path(), std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(stream), {});
    EXPECT_NO_THROW(feed(text));
    ++files;
  }
  EXPECT_GT(files, 5);
}

TEST(Corpus, OfModelsEndsInAProblemOrAnInvalidArgument) { replay("model", feed_model); }

TEST(Corpus, OfRulesEndsInAProblemOrAnInvalidArgument) { replay("rules", feed_rules); }

TEST(Corpus, OfSafetensorsEndsInAProblemOrAnInvalidArgument) { replay("safetensors", feed_safetensors); }

TEST(Corpus, OfJsonEndsInAValueOrAnInvalidArgument) { replay("json", feed_json); }

}  // namespace
}  // namespace muster::fuzz
