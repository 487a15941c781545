#include "plan/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster::plan {
namespace {

TEST(MessageCounter, CountsEachPairOnceAndNobodyWritingToItself) {
  MessageCounter counter(4);
  counter.add({0, 1, 2}, {0});
  counter.add({1, 2}, {0, 2});
  std::vector<int64_t> sent(4);
  std::vector<int64_t> received(4);
  counter.count(sent, received);
  EXPECT_THAT(sent, testing::ElementsAre(0, 2, 1, 0));
  EXPECT_THAT(received, testing::ElementsAre(2, 0, 1, 0));
}

TEST(MessageCounter, CirclesAreOfRanksThatExchangeDirectlyOrThroughOthers) {
  MessageCounter counter(8);
  counter.add({1, 2}, {1, 2});
  counter.add({5}, {4});
  counter.add({6, 7}, {5});
  EXPECT_THAT(counter.connected(), testing::ElementsAre(0, 1, 1, 3, 4, 4, 4, 4));
  counter.clear();
  EXPECT_THAT(counter.connected(), testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

}  // namespace
}  // namespace muster::plan
