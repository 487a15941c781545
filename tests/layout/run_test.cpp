#include "layout/run.h"

#include <gtest/gtest.h>

namespace muster::layout {
namespace {

Box box(std::initializer_list<std::pair<int64_t, int64_t>> ranges) {
  Box out;
  for (const auto& [begin, end] : ranges) {
    out.begin[out.dims] = begin;
    out.end[out.dims++] = end;
  }
  return out;
}

TEST(Runs, AFlatRangeWithinOneRowIsOneBox) {
  EXPECT_EQ(flat_range({4, 5}, 6, 9), std::vector<Box>({box({{1, 2}, {1, 4}})}));
}

TEST(Runs, AFlatRangeOverRowsHasAHeadABodyAndATail) {
  EXPECT_EQ(flat_range({4, 5}, 3, 17),
            std::vector<Box>({box({{0, 1}, {3, 5}}), box({{1, 3}, {0, 5}}), box({{3, 4}, {0, 2}})}));
}

TEST(Runs, AFlatRangeOfWholeRowsIsOneBox) {
  EXPECT_EQ(flat_range({4, 5}, 5, 15), std::vector<Box>({box({{1, 3}, {0, 5}})}));
}

TEST(Runs, AFlatRangeOfThreeDimsHasAtMostFiveBoxes) {
  const std::vector<Box> boxes = flat_range({4, 3, 5}, 7, 52);
  EXPECT_EQ(boxes.size(), 5U);
  int64_t volume = 0;
  for (const Box& b : boxes) volume += b.volume();
  EXPECT_EQ(volume, 45);
}

TEST(Runs, AnEmptyFlatRangeHasNoBox) { EXPECT_TRUE(flat_range({4, 5}, 7, 7).empty()); }

TEST(Runs, BoxesThatDoNotMeetIntersectInNothing) {
  EXPECT_TRUE(intersect(box({{0, 2}, {0, 5}}), box({{2, 4}, {0, 5}})).empty());
  EXPECT_EQ(intersect(box({{0, 3}, {0, 5}}), box({{2, 4}, {1, 9}})), box({{2, 3}, {1, 5}}));
}

TEST(Runs, AnOverlapKnowsWhereItSitsInBothBuffers) {
  // Rows 2 and 3 of a 4x6 tensor, and its columns 1 to 4.
  const layout::Run rows{box({{2, 4}, {0, 6}}), 0, {6, 1}};
  const layout::Run columns{box({{0, 4}, {1, 4}}), 0, {3, 1}};
  const std::vector<Intersection> common = intersections({rows}, {columns});
  ASSERT_EQ(common.size(), 1U);
  EXPECT_EQ(common[0].box, box({{2, 4}, {1, 4}}));
  EXPECT_EQ(common[0].first_offset, 1);
  EXPECT_EQ(common[0].second_offset, 6);
}

}  // namespace
}  // namespace muster::layout
