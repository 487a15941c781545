#include "plan_text/plan_table.h"

#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan_text/sample.h"
#include "plan_text/text.h"

namespace muster::plan_text {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(PlanTable, NamesTheModelAndItsFigures) {
  const Sample sample = make_sample();
  const std::string table = plan_table(sample.report(), {});
  EXPECT_THAT(table, HasSubstr("sample on 4 ranks, strategy global"));
  EXPECT_THAT(table, HasSubstr("fsdp=4"));
  EXPECT_THAT(table, HasSubstr("3 parameters, 98.4 k elements, 12 matrices"));
  EXPECT_THAT(table, HasSubstr("0000000000abcdef"));
  EXPECT_THAT(table, HasSubstr("360 µs predicted; slowest rank 400 µs, mean 250 µs"));
  EXPECT_THAT(table, HasSubstr("1.600 × mean"));
  EXPECT_THAT(table, HasSubstr("4 collectives in 2 rounds"));
  EXPECT_THAT(table, HasSubstr("padding 0 B"));
  EXPECT_THAT(table, HasSubstr("2×256×64, 4×64×64"));
  EXPECT_THAT(table, HasSubstr("████"));
}

TEST(PlanTable, SaysWhichScratchCapThePlanKeeps) {
  Sample sample = make_sample();
  sample.plan.scratch_cap = 0;
  EXPECT_THAT(plan_table(sample.report(), {}), HasSubstr("5.00 MiB at most (no cap)"));
  sample.plan.scratch_cap = kDefaultScratchBytes;
  EXPECT_THAT(plan_table(sample.report(), {}), HasSubstr("5.00 MiB at most (cap 1.00 GiB)"));
  sample.plan.scratch_cap = 5 << 20;
  sample.plan.scratch_cap_raised = true;
  EXPECT_THAT(plan_table(sample.report(), {}),
              HasSubstr("5.00 MiB at most (cap 5.00 MiB: 1.5 times the least that this model needs)"));
}

TEST(PlanTable, ColoursOnlyOnRequest) {
  const Sample sample = make_sample();
  EXPECT_THAT(plan_table(sample.report(), {}), Not(HasSubstr("\x1b")));
  EXPECT_THAT(plan_table(sample.report(), {.colour = true}), HasSubstr("\x1b[36m█"));
}

TEST(PlanTable, LinesKeepToTheWidth) {
  for (const int ranks : {4, 40}) {
    const Sample sample = make_sample({.ranks = ranks, .waves = 12});
    std::istringstream table(plan_table(sample.report(), {.width = 110}));
    for (std::string line; std::getline(table, line);) EXPECT_LE(display_width(line), 110u) << line;
  }
}

TEST(PlanTable, ManyWavesShowTheirEnds) {
  const Sample sample = make_sample({.ranks = 2, .waves = 40});
  const std::string table = plan_table(sample.report(), {});
  EXPECT_THAT(table, HasSubstr("… 28 more"));
  EXPECT_THAT(table, HasSubstr("\n     7 "));
  EXPECT_THAT(table, Not(HasSubstr("\n     8 ")));
  EXPECT_THAT(table, Not(HasSubstr("\n    35 ")));
  EXPECT_THAT(table, HasSubstr("\n    36 "));
}

TEST(PlanTable, ManyRanksBecomeAHistogram) {
  const Sample sample = make_sample({.ranks = 32});
  const std::string table = plan_table(sample.report(), {});
  EXPECT_THAT(table, HasSubstr("31 slowest"));
  EXPECT_THAT(table, HasSubstr("15 median"));
  EXPECT_THAT(table, HasSubstr("0 fastest"));
  EXPECT_THAT(table, HasSubstr("2.8 ms – 3.2 ms       4"));
}

TEST(PlanTable, EqualRanksAreOneBin) {
  Sample sample = make_sample({.ranks = 32});
  for (auto& rank : sample.summary.ranks) rank = sample.summary.ranks.front();
  EXPECT_THAT(plan_table(sample.report(), {}), HasSubstr("100 µs      32"));
}

TEST(PlanTable, PaddingShowsZerosAndTransport) {
  Sample sample = make_sample();
  sample.plan.waves[0].transport = Transport::kPadded;
  sample.summary.waves[0].zeros = 2;
  sample.summary.padding_bytes = 4096;
  const std::string table = plan_table(sample.report(), {});
  EXPECT_THAT(table, HasSubstr("6+2"));
  EXPECT_THAT(table, HasSubstr("padded"));
  EXPECT_THAT(table, HasSubstr("12 matrices and 2 of zeros"));
  EXPECT_THAT(table, HasSubstr("padding 4.00 KiB"));
}

TEST(PlanTable, ReplicasThatRecomputeShow) {
  Sample sample = make_sample();
  EXPECT_THAT(plan_table(sample.report(), {}), Not(HasSubstr("for itself")));
  sample.plan.each_replica.assign(sample.plan.owner.size(), false);
  sample.plan.each_replica[1] = sample.plan.each_replica[3] = true;
  EXPECT_THAT(plan_table(sample.report(), {}), HasSubstr("each orthogonalizes 2 of the matrices for itself"));
}

TEST(PlanReport, ShapesThatDoNotFitGiveWay) {
  const std::vector<ShapeCount> shapes = {{768, 768, 48}, {3072, 768, 12}, {768, 3072, 1}};
  EXPECT_EQ(shapes_text(shapes, 100), "48×768×768, 12×3072×768, 1×768×3072");
  EXPECT_EQ(shapes_text(shapes, 35), "48×768×768, 12×3072×768, 1×768×3072");
  EXPECT_EQ(shapes_text(shapes, 34), "48×768×768, 12×3072×768, …");
  EXPECT_EQ(shapes_text(shapes, 25), "48×768×768, …");
  EXPECT_EQ(shapes_text(shapes, 9), "…");
  EXPECT_EQ(shapes_text({}, 9), "");
}

}  // namespace
}  // namespace muster::plan_text
