#include "plan_text/explain_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan_text/sample.h"

namespace muster::plan_text {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kElements = 64 * 64;

plan::Candidate candidate(int32_t rank, int64_t held, int64_t load_ns) {
  return {.rank = rank, .held_elements = held, .orthogonalize_ns = 50'000, .load_ns = load_ns};
}

std::string reason_for(const std::vector<plan::Candidate>& candidates, Strategy strategy = Strategy::kGlobal) {
  Sample sample = make_sample();
  sample.plan.strategy = strategy;
  plan::MatrixExplanation matrix;
  matrix.rows = matrix.columns = 64;
  matrix.candidates = candidates;
  return reason(sample.report(), matrix);
}

TEST(ExplainText, AnOwnerThatHoldsAllNeedsNothing) {
  EXPECT_EQ(reason_for({candidate(2, kElements, 300'000), candidate(1, 0, 200'000)}),
            "Rank 2 already holds all of it, so nothing has to reach it.");
  plan::Candidate far = candidate(1, 0, 200'000);
  far.exchange_ns = 45'000;
  EXPECT_EQ(reason_for({candidate(2, kElements, 300'000), far}),
            "Rank 2 already holds all of it, so nothing has to reach it; on rank 1 it would cost 45.0 µs more.");
}

TEST(ExplainText, TheLeastLoadedHolderWins) {
  EXPECT_EQ(reason_for({candidate(1, kElements / 4, 200'000), candidate(0, kElements / 4, 250'000)}),
            "Rank 1 holds 25 % of it and is the least loaded of the holders: 200 µs, against 250 µs (+25 %) on rank 0 "
            "with it.");
  EXPECT_THAT(reason_for({candidate(1, kElements, 200'000), candidate(0, kElements, 220'000)}),
              HasSubstr("already holds all of it and is the least loaded of the holders"));
}

TEST(ExplainText, AMatrixLeavesOverloadedHolders) {
  EXPECT_EQ(reason_for({candidate(3, 0, 400'000), candidate(1, kElements, 500'000), candidate(0, 0, 450'000)}),
            "Moved off its holders: the best of them, rank 1, would carry 500 µs with it, 25 % more than rank 3 does.");
  EXPECT_EQ(reason_for({candidate(3, 0, 400'000), candidate(0, 0, 450'000), candidate(2, 0, 500'000)}),
            "Moved off its holders: each of them would carry at least 500 µs with it; rank 3 carries 400 µs.");
}

TEST(ExplainText, ALighterRankIsNotAlwaysBetter) {
  EXPECT_EQ(reason_for({candidate(1, kElements / 2, 300'000), candidate(0, kElements / 2, 250'000)}),
            "Rank 1 holds 50 % of it; rank 0 would carry less with it (250 µs against 300 µs), but the slowest rank "
            "would not get faster.");
  plan::Candidate dear = candidate(0, kElements / 2, 350'000);
  dear.exchange_ns = 20'000;
  EXPECT_THAT(reason_for({candidate(1, 0, 400'000), dear}), HasSubstr("(350 µs against 400 µs) at 20.0 µs more work"));
}

TEST(ExplainText, OtherStrategiesDoNotLookAtCost) {
  EXPECT_EQ(reason_for({candidate(1, 0, 300'000)}, Strategy::kChunked),
            "Strategy chunked decides by position, not by cost; rank 1 holds 0 % of it.");
}

TEST(ExplainText, AMatrixParameterShowsItsCandidates) {
  const Sample sample = make_sample();
  plan::Explanation explanation =
      explain_one(8, {candidate(1, kElements / 2, 200'000), candidate(0, kElements / 2, 250'000)});
  explanation.matrices[0].normuon = true;
  const std::string text = explain_text(sample.report(), explanation);
  EXPECT_THAT(text, HasSubstr("square: 8×64×64 f32, normuon, 32,768 elements"));
  EXPECT_THAT(text, HasSubstr("layout: fsdp: shard(0) on mesh fsdp=4; 4 ranks, 1 copy of each element"));
  EXPECT_THAT(text, HasSubstr("matrix 0: 64×64, NorMuon, wave 0, on 2 holders, owner rank 1"));
  EXPECT_THAT(text, HasSubstr("load with it"));
  EXPECT_THAT(text, HasSubstr("… and 7 more"));
}

TEST(ExplainText, EqualMatricesAreSaidOnce) {
  const Sample sample = make_sample();
  plan::Explanation explanation;
  explanation.matrix_count = 3;
  plan::MatrixExplanation matrix;
  matrix.rows = matrix.columns = 64;
  for (const int32_t owner : {1, 1, 2}) {
    matrix.index = static_cast<int32_t>(explanation.matrices.size());
    matrix.candidates = {candidate(owner, kElements, 200'000)};
    explanation.matrices.push_back(matrix);
  }
  const std::string text = explain_text(sample.report(), explanation);
  EXPECT_THAT(text, HasSubstr("matrices 0 to 1, each: 64×64"));
  EXPECT_THAT(text, HasSubstr("matrix 2: 64×64"));
}

TEST(ExplainText, ElementwiseParametersNameTheirUpdaters) {
  const Sample sample = make_sample();
  plan::Explanation explanation;
  explanation.parameter = 2;
  EXPECT_THAT(explain_text(sample.report(), explanation), HasSubstr("Each holder updates what it holds."));
  explanation.updaters = {{0, 30}, {1, 20}};
  EXPECT_THAT(explain_text(sample.report(), explanation), HasSubstr("30 on rank 0, 20 on rank 1, 14 elsewhere."));
}

}  // namespace
}  // namespace muster::plan_text
