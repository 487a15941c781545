#include "report/terms.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/page_support.h"

namespace muster::report {
namespace {

using ::testing::ElementsAre;

TEST(Terms, EveryStrategyIsExplained) {
  for (const Strategy strategy : all_strategies()) EXPECT_FALSE(strategy_words(strategy).empty()) << name(strategy);
}

TEST(Terms, ArePartOfThePageThatShowsThem) {
  Page page;
  page.facts = {Figure::time("predicted_ms", "step", 1).from(Source::kPredicted), Figure::count("hats", "hats", 3)};
  page.strategies = {{"chunked", 0, 0, {Figure::ratio("imbalance", "imbalance", 1)}}, {"global, 2 waves", 0, 0, {}}};
  std::vector<std::string> names;
  const nlohmann::json data = page_data(page);
  for (const auto& term : data.at("terms")) names.push_back(term.at("name"));
  EXPECT_THAT(names, ElementsAre("chunked", "global, 2 waves", "step, predicted", "imbalance"));
}

TEST(Terms, ANameThatIsNoStrategyNeedsNoWords) {
  Page page;
  page.strategies = {{"fastest of all", 0, 0, {}}};
  EXPECT_TRUE(page_data(page).at("terms").empty());
}

}  // namespace
}  // namespace muster::report
