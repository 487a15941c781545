#include "plan/cost_model/cost_table.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"

namespace muster::plan {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;

constexpr std::string_view kTable =
    R"({"device": "t", "rates": [[64, 10], [4096, 170]], "batch_ns": 1, "exchange_ns": 2,
  "message_ns": 3, "memory_mbps": 12000, "intra_node_mbps": 5000, "inter_node_mbps": 1000, "ranks_per_node": 64,
  "compute_bytes": 4, "overlap_percent": 50})";

// The table with one text in place of another.
std::string with(std::string_view from, std::string_view to) {
  std::string text(kTable);
  return text.replace(text.find(from), from.size(), to);
}

std::string refusal(const std::string& text) {
  try {
    parse_cost_table(text, "F");
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing";
}

TEST(CostTable, HasWhatItsFileSays) {
  const CostTable table = parse_cost_table(kTable, "F");
  EXPECT_EQ(table.device, "t");
  ASSERT_EQ(table.rates.size(), 2U);
  EXPECT_EQ(table.rates[1].gflops, 170);
  EXPECT_EQ(table.message_ns, 3);
  EXPECT_EQ(table.ranks_per_node, 64);
}

TEST(CostTable, RefusesWhatItDoesNotUnderstandWithKeyAndValue) {
  EXPECT_EQ(refusal("[]"), "F: must be a JSON object, not []");
  EXPECT_EQ(refusal(with("\"batch_ns\"", "\"batch\"")), "F: 'batch_ns' is missing");
  EXPECT_EQ(refusal(with("\"batch_ns\": 1", "\"batch_ns\": 1, \"nics\": 8")), "F: unknown key 'nics'");
  EXPECT_THAT(refusal(with("12000", "1.5")), AllOf(HasSubstr("'memory_mbps'"), EndsWith("not 1.5")));
  EXPECT_THAT(refusal(with("5000", "18446744073709551615")), HasSubstr("18446744073709551615"));
  EXPECT_THAT(refusal(with("[64, 10]", "[64]")), HasSubstr("an array of 1 values"));
  EXPECT_THAT(refusal(with("[64, 10]", "64")), HasSubstr("'rates' must be an array, not 64"));
  EXPECT_THAT(refusal(with("170", "0")), HasSubstr("gflops 0"));
  EXPECT_THAT(refusal(with("\"t\"", '"' + std::string(5000, 'x') + '"')), HasSubstr("has 5000 bytes"));
}

// It had no limit on depth and wrote values whole into messages.
TEST(CostTable, RefusalsAreShortWhateverTheFileHolds) {
  EXPECT_EQ(refusal(with("12000", std::string(65'500, '[') + std::string(65'500, ']'))), "F: nested more than 32 deep");
  EXPECT_LT(refusal(with("12000", '"' + std::string(5'000'000, 'x') + '"')).size(), 200U);
}

// The text of the standard library's error, with all 5000 characters, was the message.
TEST(CostTable, OfANameThatNoFileHasIsRefusedInOneLine) {
  try {
    CostTable::load(std::string(5000, 'x') + "/cost.json");
    FAIL() << "loaded";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("x/cost.json'"), HasSubstr("neither h200, cpu nor a file")));
    EXPECT_LT(std::string(error.what()).size(), 400U);
  }
}

}  // namespace
}  // namespace muster::plan
