#include "kernels/cuda/runtime/call_memo.h"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "queue_steps.h"

namespace muster::kernels::cuda {
namespace {

// The tests of CallMemo alone need no device.
void fill_in(CallMemo& memo, size_t number, const std::vector<int64_t>& inputs, int64_t position, size_t bytes) {
  CallMemo::Entry& entry = memo.close(number, inputs, position);
  entry.arguments.assign(bytes, std::byte{7});
}

TEST(CallMemo, FindsCallsOfTheSameInputsInTheSamePlace) {
  CallMemo memo;
  const std::vector<int64_t> inputs{1, 2};
  EXPECT_EQ(memo.find(inputs, 0, 0), nullptr);
  fill_in(memo, memo.open(), inputs, 0, 16);
  EXPECT_EQ(memo.find(inputs, 16, 0), nullptr);  // there is one entry

  memo.restart();
  EXPECT_EQ(memo.find(std::vector<int64_t>{1, 3}, 0, 0), nullptr);
  EXPECT_EQ(memo.find(std::vector<int64_t>{1}, 0, 0), nullptr);
  EXPECT_EQ(memo.find(inputs, 16, 0), nullptr);
  EXPECT_EQ(memo.find(inputs, 0, 4), nullptr);
  const CallMemo::Entry* const found = memo.find(inputs, 0, 0);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(found->arguments.size(), 16U);

  memo.clear();
  EXPECT_EQ(memo.find(inputs, 0, 0), nullptr);
}

TEST(CallMemo, SkipsNestedCallsAndFindsThemAlone) {
  CallMemo memo;
  const std::vector<int64_t> all{0};
  const std::vector<int64_t> first{1};
  const std::vector<int64_t> second{2};
  const std::vector<int64_t> after{3};
  const size_t outer = memo.open();
  fill_in(memo, memo.open(), first, 0, 16);
  fill_in(memo, memo.open(), second, 16, 16);
  fill_in(memo, outer, all, 0, 32);
  fill_in(memo, memo.open(), after, 32, 16);

  memo.restart();
  EXPECT_NE(memo.find(all, 0, 0), nullptr);
  EXPECT_NE(memo.find(after, 32, 0), nullptr);

  // Now the outer inputs differ, and those of the second call within.
  memo.restart();
  const std::vector<int64_t> other{4};
  EXPECT_EQ(memo.find(other, 0, 0), nullptr);
  EXPECT_EQ(memo.open(), outer);
  EXPECT_NE(memo.find(first, 0, 0), nullptr);
  EXPECT_EQ(memo.find(other, 16, 0), nullptr);
  fill_in(memo, memo.open(), other, 16, 16);
  fill_in(memo, outer, other, 0, 32);
  EXPECT_NE(memo.find(after, 32, 0), nullptr);
}

// As when calls throw, or the table overflows.
TEST(CallMemo, DoesNotFindCallsThatWereNotClosed) {
  CallMemo memo;
  const std::vector<int64_t> inputs{1};
  fill_in(memo, memo.open(), inputs, 0, 16);
  memo.restart();
  memo.open();
  memo.restart();
  EXPECT_EQ(memo.find(inputs, 0, 0), nullptr);
}

TEST_F(LaunchQueueSteps, ADryRunDoesNotMakeCallsOfTheSameInputsAgain) {
  Model::Step step{{gradient(0), gradient(1)}};
  step.memoize = true;
  // How often a matrix's calls were made, in a step with so many passes.
  const auto calls_of_step = [&](int passes) {
    const int before = captured_->made;
    EXPECT_EQ(step_both(step), passes);
    return captured_->made - before;
  };
  EXPECT_EQ(calls_of_step(2), 4);  // dry run, carried out
  EXPECT_EQ(calls_of_step(2), 2);  // captured
  EXPECT_EQ(calls_of_step(1), 0);
  const int64_t launches = queue().launches();
  step.lr = 0.2;
  EXPECT_EQ(calls_of_step(1), 2);
  step.gradients[1] = gradient(2);
  EXPECT_EQ(calls_of_step(1), 1);
  EXPECT_EQ(calls_of_step(1), 0);
  EXPECT_EQ(queue().launches(), launches);
  step.before = 1;  // everything moves in the table, and the key differs
  EXPECT_EQ(calls_of_step(2), 4);
  EXPECT_EQ(calls_of_step(2), 2);
  EXPECT_EQ(calls_of_step(1), 0);
  EXPECT_EQ(queue().graphs(), 2);
}

TEST_F(LaunchQueueSteps, ADryRunKnowsCallsWithinOthers) {
  Model::Step step{{gradient(0), gradient(1)}};
  step.memoize = step.memoize_all = true;
  const auto calls_of_step = [&](int passes) {
    const int made = std::exchange(captured_->made, 0);
    const int after = std::exchange(captured_->after, 0);
    EXPECT_EQ(step_both(step), passes);
    const std::pair calls{captured_->made, captured_->after};
    captured_->made += made;
    captured_->after += after;
    return calls;
  };
  EXPECT_EQ(calls_of_step(2), std::pair(4, 2));
  EXPECT_EQ(calls_of_step(2), std::pair(2, 1));
  EXPECT_EQ(calls_of_step(1), std::pair(0, 0));
  step.gradients[1] = gradient(2);  // neither the first matrix nor what comes after
  EXPECT_EQ(calls_of_step(1), std::pair(1, 0));
  EXPECT_EQ(calls_of_step(1), std::pair(0, 0));
  step.gradients[0] = gradient(3);
  EXPECT_EQ(calls_of_step(1), std::pair(1, 1));
  EXPECT_EQ(calls_of_step(1), std::pair(0, 0));
  step.blocks = 5;
  EXPECT_EQ(calls_of_step(2), std::pair(4, 2));
  EXPECT_EQ(calls_of_step(2), std::pair(2, 1));
  EXPECT_EQ(calls_of_step(1), std::pair(0, 0));
}

}  // namespace
}  // namespace muster::kernels::cuda
