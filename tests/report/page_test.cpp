#include "report/page.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/page_support.h"

namespace muster::report {
namespace {

using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(Page, NeedsNothingFromElsewhere) {
  const std::string html = page_html({});
  EXPECT_THAT(html, HasSubstr("<!DOCTYPE html>"));
  EXPECT_THAT(html, HasSubstr("</html>"));
  EXPECT_THAT(html, HasSubstr("default-src 'none'"));
  for (const char* outside : {"https:", "src=", "@import", "url(", "fetch("}) {
    EXPECT_THAT(html, Not(HasSubstr(outside))) << outside;
  }
  EXPECT_EQ(count(html, "http:"), 1u);  // the name of SVG, which nobody looks up
}

TEST(Page, OfNothingHasEveryPartEmpty) {
  const Json data = page_data({});
  for (const char* part : {"facts", "charts", "strategies", "loads", "timelines", "maps", "notes"}) {
    EXPECT_EQ(data.at(part), Json::array()) << part;
  }
}

// A script block ends at the first "</script", wherever it stands: a model's name could close it.
TEST(Page, NamesCannotLeaveTheData) {
  const std::string name = "</script><script>alert('x')</script><!-- & \"quoted\"\n\x01";
  Page page{.title = name, .subtitle = name};
  page.facts = {Figure::text("k", name, name)};
  page.loads = {{name, {1}, {2}}};
  const std::string html = page_html(page);
  EXPECT_EQ(count(html, "<script"), 2u);
  EXPECT_EQ(count(html, "</script"), 2u);
  EXPECT_THAT(html, Not(HasSubstr("<!--")));
  EXPECT_THAT(html, HasSubstr("<title>&lt;/script&gt;"));
  EXPECT_EQ(page_data(page).at("facts")[0].at("value"), name);
  EXPECT_EQ(page_data(page).at("loads")[0].at("strategy"), name);
}

TEST(Page, TextThatIsNotUtf8IsReplaced) { EXPECT_EQ(page_data({.title = "a\xff"}).at("title"), "a\xef\xbf\xbd"); }

TEST(Page, FiguresKeepTheirValues) {
  Page page;
  page.facts = {Figure::time("t_ms", "time", 1'234'567'890'123), Figure::bytes("b", "bytes", int64_t{1} << 52),
                Figure::ratio("r", "ratio", 0.1), Figure::yes_no("e", "equal", true)};
  const Json facts = page_data(page).at("facts");
  EXPECT_EQ(facts[0], (Json{{"key", "t_ms"}, {"label", "time"}, {"unit", "ns"}, {"value", 1'234'567'890'123}}));
  EXPECT_EQ(facts[1].at("value"), int64_t{1} << 52);
  EXPECT_EQ(facts[2].at("value"), 0.1);
  EXPECT_EQ(facts[3].at("value"), 1);
}

TEST(Page, CurvesKeepEveryBitAndGaps) {
  Page page;
  const double third = 1.0 / 3;
  page.charts = {{"loss", "step", "nats", {{"a", {0, 1, 2}, {third, std::numeric_limits<double>::infinity(), 2}}}, {}}};
  EXPECT_EQ(page_data(page).at("charts")[0].at("curves")[0].at("y"), (Json{third, nullptr, 2.0}));
}

TEST(Page, ACurveHasABandOnlyIfItIsGiven) {
  Page page;
  page.charts = {{.title = "loss",
                  .curves = {{.name = "mean", .x = {0, 1}, .y = {2, 1}, .low = {1.5, 0.5}, .high = {2.5, 1.5}},
                             {.name = "one", .x = {0}, .y = {2}}}}};
  const Json curves = page_data(page).at("charts")[0].at("curves");
  EXPECT_EQ(curves[0].at("low"), (Json{1.5, 0.5}));
  EXPECT_EQ(curves[0].at("high"), (Json{2.5, 1.5}));
  EXPECT_FALSE(curves[1].contains("low"));
}

TEST(Page, TablesOfWordsAreKept) {
  Page page;
  page.tables = {{.title = "Parameters",
                  .lead = "All.",
                  .heads = {"parameter", "shape"},
                  .words = {"shape"},
                  .rows = {{"wte", "2×3"}},
                  .total = {"1", ""}}};
  const Json table = page_data(page).at("tables")[0];
  EXPECT_EQ(table.at("heads"), (Json{"parameter", "shape"}));
  EXPECT_EQ(table.at("words"), Json{"shape"});
  EXPECT_EQ(table.at("rows")[0][1], "2×3");
  EXPECT_EQ(table.at("total"), (Json{"1", ""}));
}

TEST(Page, WavesOfAMapAreRuns) {
  Page page;
  page.maps = {{.owner = {3, 1, 2, 0}, .wave = {0, 0, 0, 2}, .repeated = {-1, -1, 0, 0}}};
  const Json map = page_data(page).at("maps")[0];
  EXPECT_EQ(map.at("owner"), (Json{3, 1, 2, 0}));
  EXPECT_EQ(map.at("wave_runs"), (Json{0, 3, 2, 1}));
  EXPECT_EQ(map.at("repeated_runs"), (Json{-1, 2, 0, 2}));
}

}  // namespace
}  // namespace muster::report
