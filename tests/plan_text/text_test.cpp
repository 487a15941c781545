#include "plan_text/text.h"

#include <limits>

#include <gtest/gtest.h>

namespace muster::plan_text {
namespace {

TEST(Text, BytesHaveThreeDigitsAndBinaryUnits) {
  EXPECT_EQ(bytes_text(0), "0 B");
  EXPECT_EQ(bytes_text(1023), "1023 B");
  EXPECT_EQ(bytes_text(1536), "1.50 KiB");
  EXPECT_EQ(bytes_text(10 << 20), "10.0 MiB");
  EXPECT_EQ(bytes_text(int64_t{128} << 20), "128 MiB");
  EXPECT_EQ(bytes_text(int64_t{3} << 40), "3.00 TiB");
  EXPECT_EQ(bytes_text(std::numeric_limits<int64_t>::max()), "8192 PiB");
}

TEST(Text, TimesNeverReadAThousandOfASmallerUnit) {
  EXPECT_EQ(time_text(0), "0 ns");
  EXPECT_EQ(time_text(999), "999 ns");
  EXPECT_EQ(time_text(12'345), "12.3 µs");
  EXPECT_EQ(time_text(999'999), "1.00 ms");
  EXPECT_EQ(time_text(1'240'000), "1.24 ms");
  EXPECT_EQ(time_text(2'410'000'000), "2.41 s");
}

TEST(Text, CloseTimesStayApart) {
  EXPECT_EQ(time_text(171'000'000, 500'000), "171.0 ms");
  EXPECT_EQ(time_text(171'000'000, 40'000), "171.00 ms");
  EXPECT_EQ(time_text(171'000'000, 20'000'000), "171 ms");
  EXPECT_EQ(time_text(850, 10), "850 ns");
  EXPECT_EQ(time_text(0, 0), "0 ns");
}

TEST(Text, CountsAreGroupedOrRounded) {
  EXPECT_EQ(grouped_text(0), "0");
  EXPECT_EQ(grouped_text(999), "999");
  EXPECT_EQ(grouped_text(1000), "1,000");
  EXPECT_EQ(grouped_text(61440), "61,440");
  EXPECT_EQ(grouped_text(-1234567), "-1,234,567");
  EXPECT_EQ(grouped_text(-123), "-123");
  EXPECT_EQ(magnitude_text(912), "912");
  EXPECT_EQ(magnitude_text(124'439'808), "124.4 M");
  EXPECT_EQ(magnitude_text(999'999), "1.0 M");
  EXPECT_EQ(magnitude_text(396'800'000'000), "396.8 B");
}

TEST(Text, PercentagesKeepWhatMatters) {
  EXPECT_EQ(percent_text(0), "0 %");
  EXPECT_EQ(percent_text(0.125), "12.5 %");
  EXPECT_EQ(percent_text(1), "100 %");
  EXPECT_EQ(percent_text(0.0012), "0.12 %");
  EXPECT_EQ(percent_text(3.337), "334 %");
}

TEST(Text, AHashHasSixteenDigits) { EXPECT_EQ(hash_text(0xabcdef), "0000000000abcdef"); }

TEST(Text, TruncationCountsColumnsAndNeverCutsACharacter) {
  EXPECT_EQ(display_width("48×768"), 6u);
  EXPECT_EQ(truncated("48×768", 6), "48×768");
  EXPECT_EQ(truncated("48×768", 5), "48×7…");
  EXPECT_EQ(truncated("48×768", 3), "48…");
  EXPECT_EQ(truncated("×××", 2), "×…");
  EXPECT_EQ(truncated("abc", 1), "…");
  EXPECT_EQ(truncated("abc", 0), "");
}

TEST(Text, NamesFromFilesCannotDriveATerminalOrAPage) {
  EXPECT_EQ(printable("a\x1b[31m\nb"), "a?[31m?b");
  EXPECT_EQ(printable("größe"), "größe");
  EXPECT_EQ(html_escaped("<b a=\"1\">&'\n"), "&lt;b a=&quot;1&quot;&gt;&amp;&#39;?");
}

void expect_cells(const Bar& bar, int compute, int exchange) {
  const BarCells cells = bar_cells(bar);
  EXPECT_EQ(cells.compute, compute);
  EXPECT_EQ(cells.exchange, exchange);
}

TEST(Text, BarsAreScaledToTheSlowest) {
  expect_cells({.compute = 80, .exchange = 20, .full = 100, .cells = 10}, 8, 2);
  expect_cells({.compute = 40, .exchange = 10, .full = 100, .cells = 10}, 4, 1);
  expect_cells({.compute = 100, .exchange = 0, .full = 100, .cells = 10}, 10, 0);
  expect_cells({.compute = 0, .exchange = 100, .full = 100, .cells = 10}, 0, 10);
}

TEST(Text, ABarShowsWhateverIsNotZero) {
  expect_cells({.compute = 1, .exchange = 1, .full = 100000, .cells = 10}, 1, 1);
  expect_cells({.compute = 99999, .exchange = 1, .full = 100000, .cells = 10}, 9, 1);
  expect_cells({.compute = 1, .exchange = 99999, .full = 100000, .cells = 10}, 1, 9);
  expect_cells({.compute = 0, .exchange = 0, .full = 100, .cells = 10}, 0, 0);
  expect_cells({.compute = 1, .exchange = 1, .full = 2, .cells = 1}, 0, 1);
  expect_cells({.compute = 5, .exchange = 5, .full = 0, .cells = 10}, 0, 0);
}

}  // namespace
}  // namespace muster::plan_text
