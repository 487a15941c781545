#include "plan/matrices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"
#include "support/oracle.h"
#include "support/problems.h"
#include "support/runs.h"

namespace muster::plan {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Parameter parameter(Shape shape, MatrixSpec spec = {}) {
  Parameter p = test::one_parameter(std::move(shape), 1, Algorithm::kNorMuon).parameters[0];
  p.matrices = std::move(spec);
  return p;
}

std::vector<std::pair<int64_t, int64_t>> shapes(const Parameter& p) {
  const MatrixGrid grid(p);
  std::vector<std::pair<int64_t, int64_t>> out;
  for (int32_t i = 0; i < grid.count(); ++i) out.push_back({grid.at(i).rows, grid.at(i).columns});
  return out;
}

// The flat indices of a matrix in row-major order, through its runs.
std::vector<int64_t> listed(const Parameter& p, int32_t index) {
  const MatrixGrid grid(p);
  return test::flat_indices(p.shape, grid.runs(index), grid.at(index).elements());
}

TEST(Matrices, AWhole2dWeightIsOne) { EXPECT_THAT(shapes(parameter({6, 4})), ElementsAre(std::pair(6, 4))); }

TEST(Matrices, LeadingDimsAreABatch) {
  const Parameter experts = parameter({2, 3, 4, 5});
  EXPECT_EQ(MatrixGrid(experts).count(), 6);
  EXPECT_THAT(listed(experts, 4).front(), 4 * 20);
}

TEST(Matrices, FusedQkvUnderGqaIsThreeRowBlocks) {
  const Parameter qkv = parameter({12, 4}, {{}, false, {{8, {}, {}}, {2, {}, {}}, {2, {}, {}}}, {}});
  EXPECT_THAT(shapes(qkv), ElementsAre(std::pair(8, 4), std::pair(2, 4), std::pair(2, 4)));
  EXPECT_THAT(listed(qkv, 2), ElementsAre(40, 41, 42, 43, 44, 45, 46, 47));
}

TEST(Matrices, AnOutputProjectionPerHeadIsColumnBlocks) {
  const Parameter out = parameter({2, 6}, {{}, false, {}, {{3, {}, {}}, {3, {}, {}}}});
  EXPECT_THAT(listed(out, 0), ElementsAre(0, 1, 2, 6, 7, 8));
  EXPECT_THAT(listed(out, 1), ElementsAre(3, 4, 5, 9, 10, 11));
}

// modded-nanogpt #132 stores four 768x768 matrices as 768x3072 and reads them back row-major as 4x768x768. Slice k is
// rows 192k to 192k + 192 of the storage, not columns 768k to 768k + 768.
TEST(Matrices, AViewIsNotColumnBlocks) {
  const Parameter view = parameter({2, 8}, {{4, 2, 2}, false, {}, {}});
  const Parameter columns = parameter({2, 8}, {{}, false, {}, {{2, {}, {}}, {2, {}, {}}, {2, {}, {}}, {2, {}, {}}}});
  EXPECT_EQ(shapes(view), shapes(columns));
  EXPECT_THAT(listed(view, 0), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(listed(columns, 0), ElementsAre(0, 1, 8, 9));

  const Parameter qkvo = parameter({768, 3072}, {{4, 768, 768}, false, {}, {}});
  const std::vector<layout::Run> runs = MatrixGrid(qkvo).runs(3);
  ASSERT_EQ(runs.size(), 1U);
  EXPECT_EQ(runs[0].box.begin[0], 576);
  EXPECT_EQ(runs[0].box.end[0], 768);
  EXPECT_EQ(runs[0].box.end[1], 3072);
}

TEST(Matrices, AConvolutionIsItsOutputsAgainstAllElse) {
  EXPECT_THAT(shapes(parameter({8, 3, 2, 2}, {{}, true, {}, {}})), ElementsAre(std::pair(8, 12)));
}

TEST(Matrices, EveryKindHasTheElementsOfExplicitLists) {
  const std::vector<Parameter> all{
      parameter({6, 4}),
      parameter({2, 3, 4, 5}),
      parameter({3, 4, 5}, {{}, true, {{1, {}, {}}, {2, {}, {}}}, {{7, {}, {}}, {13, {}, {}}}}),
      parameter({6, 10}, {{3, 4, 5}, false, {{1, {}, {}}, {3, {}, {}}}, {}}),
      parameter({60}, {{5, 12}, false, {}, {{5, {}, {}}, {7, {}, {}}}}),
      parameter({4, 6}, {{}, false, {{2, {}, {}}, {2, {}, {}}}, {{1, {}, {}}, {5, {}, {}}}}),
  };
  for (const Parameter& p : all) {
    const std::vector<std::vector<int64_t>> expected = test::matrix_elements(p);
    ASSERT_EQ(MatrixGrid(p).count(), static_cast<int32_t>(expected.size()));
    for (int32_t i = 0; i < static_cast<int32_t>(expected.size()); ++i) EXPECT_EQ(listed(p, i), expected[i]);
  }
}

TEST(Matrices, NorMuonAndItsAxisFollowTheBlockThenTheParameter) {
  Parameter p = parameter({6, 4}, {{}, false, {{2, false, {}}, {4, {}, NormAxis::kColumns}}, {}});
  p.norm_axis = NormAxis::kRows;
  const MatrixGrid grid(p);
  EXPECT_FALSE(grid.at(0).normuon);
  EXPECT_TRUE(grid.at(1).normuon);
  EXPECT_EQ(grid.at(0).norm_axis, NormAxis::kRows);
  EXPECT_EQ(grid.at(1).norm_axis, NormAxis::kColumns);
}

TEST(Matrices, TheLongerSideIsRowsOnATie) {
  EXPECT_EQ(MatrixGrid(parameter({4, 4})).at(0).norm_axis, NormAxis::kRows);
  EXPECT_EQ(MatrixGrid(parameter({4, 5})).at(0).norm_axis, NormAxis::kColumns);
}

TEST(Matrices, BadOnesAreNamedWithTheirValue) {
  struct Bad {
    Parameter p;
    const char* message;
  };
  const std::vector<Bad> all{
      {parameter({6, 4}, {{}, false, {{2, {}, {}}, {3, {}, {}}}, {}}), "row blocks [2,3] do not sum to 6"},
      {parameter({6, 4}, {{}, false, {}, {{5, {}, {}}}}), "column blocks [5] do not sum to 4"},
      {parameter({6, 4}, {{}, false, {{INT64_MAX, {}, {}}, {INT64_MAX, {}, {}}}, {}}), "do not sum to 6"},
      {parameter({6, 4}, {{}, false, {{6, {}, {}}, {0, {}, {}}}, {}}), "row block of size 0"},
      {parameter({6, 4}, {{5, 5}, false, {}, {}}), "view [5,5] does not have the elements of shape [6,4]"},
      {parameter({6, 4}, {{-6, -4}, false, {}, {}}), "view [-6,-4] has dim -6"},
      {parameter({24}), "shape [24] has no matrix"},
  };
  for (const Bad& bad : all) {
    try {
      MatrixGrid grid(bad.p);
      FAIL() << bad.message;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), HasSubstr("parameter 'w'"));
      EXPECT_THAT(error.what(), HasSubstr(bad.message));
    }
  }
}

}  // namespace
}  // namespace muster::plan
