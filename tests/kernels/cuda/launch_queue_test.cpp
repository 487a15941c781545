// A step that is captured and replayed does what it does when carried out call by call.
#include "kernels/cuda/runtime/launch_queue.h"

#include <gtest/gtest.h>

#include "queue_steps.h"

namespace muster::kernels::cuda {
namespace {

TEST_F(LaunchQueueSteps, ReplaysWithMovedGradientsAndOtherNumbers) {
  EXPECT_EQ(step_both({{gradient(0), gradient(1)}}), 2);  // dry run, then carried out
  EXPECT_EQ(queue().graphs(), 0);
  EXPECT_EQ(step_both({{gradient(2), gradient(3)}, 0.8}), 2);  // dry run, then captured
  EXPECT_EQ(queue().graphs(), 1);
  EXPECT_EQ(step_both({{gradient(3), gradient(0)}, 0.8, 0.01}), 1);  // replayed
  EXPECT_EQ(step_both({{gradient(1), gradient(2)}, 0.7, 0.02}), 1);
  EXPECT_EQ(queue().graphs(), 1);
}

TEST_F(LaunchQueueSteps, AnotherCountIsAnotherGraph) {
  const Model::Step four{{gradient(0), gradient(1)}};
  Model::Step five = four;
  five.blocks = 5;
  for (const int passes : {2, 2, 1}) EXPECT_EQ(step_both(four), passes);
  for (const int passes : {2, 2, 1}) EXPECT_EQ(step_both(five), passes);
  EXPECT_EQ(queue().graphs(), 2);
  EXPECT_EQ(step_both(four), 1);  // its graph is still cached
}

TEST_F(LaunchQueueSteps, StepsWithoutCaptureAreCarriedOut) {
  const Model::Step step{{gradient(0), gradient(1)}};
  for (int i = 0; i < 3; ++i) {
    make_step(*captured_, step, false, queue());
    make_step(*expected_, step, false, *eager_);
  }
  queue().synchronize();
  eager_->synchronize();
  EXPECT_TRUE(*captured_ == *expected_);
  EXPECT_EQ(queue().graphs(), 0);
}

TEST_F(LaunchQueueSteps, DroppedGraphsAreCapturedAgain) {
  const Model::Step step{{gradient(0), gradient(1)}};
  for (int i = 0; i < 3; ++i) step_both(step);
  EXPECT_EQ(queue().graphs(), 1);
  queue().drop_graphs();
  EXPECT_EQ(queue().graphs(), 0);
  for (int i = 0; i < 3; ++i) step_both(step);
  EXPECT_EQ(queue().graphs(), 1);
}

// As when an exchange throws between lane() and join_lanes().
TEST_F(LaunchQueueSteps, AnAbandonedStepIsNotContinued) {
  const Model::Step step{{gradient(0), gradient(1)}};
  for (int i = 0; i < 3; ++i) step_both(step);
  const int64_t last = queue().step();
  queue().begin_step(false);
  ASSERT_FALSE(queue().end_step());  // the dry run
  queue().begin_step(false);
  queue().lane(1);
  queue().drop_graphs();
  EXPECT_EQ(queue().stream(), queue().main());
  for (const int passes : {2, 2, 1}) EXPECT_EQ(step_both(step), passes);
  EXPECT_EQ(queue().step(), last + 4);
}

// The table has 1 MB at first; 5000 blocks per matrix take two.
TEST_F(LaunchQueueSteps, ATableThatIsTooSmallGrows) {
  const Model::Step small{{gradient(0), gradient(1)}};
  Model::Step large = small;
  large.blocks = 5000;
  for (int i = 0; i < 3; ++i) step_both(small);
  for (int i = 0; i < 3; ++i) step_both(large);
  EXPECT_EQ(step_both(large), 1);
  step_both(small);
}

// No dry run has measured it, so the table grows in the middle of the step.
TEST_F(LaunchQueueSteps, APiecewiseStepIsCarriedOutAsItComes) {
  Model::Step step{{gradient(0), gradient(1)}};
  for (const size_t blocks : {4, 3000, 5000, 5000, 4}) {
    queue().begin_piecewise();
    for (size_t part = 0; part < 3; ++part) {
      step = {{gradient(part), gradient(part + 1)}, 0.9, 0.1, blocks};
      queue().wait_for_caller();
      captured_->enqueue(step, queue());
      make_step(*expected_, step, false, *eager_);
    }
    EXPECT_TRUE(queue().end_step());
    EXPECT_FALSE(queue().replayed());
    queue().synchronize();
    eager_->synchronize();
    EXPECT_TRUE(*captured_ == *expected_) << blocks;
  }
  EXPECT_EQ(queue().graphs(), 0);
}

// The host waits for none of them.
TEST_F(LaunchQueueSteps, ManyStepsMayBeUnderWay) {
  LaunchQueue& queue = this->queue();
  for (size_t i = 0; i < 50; ++i) {
    const Model::Step step{{gradient(i % 4), gradient((i + 1) % 4)}, 0.5 + 0.01 * static_cast<double>(i)};
    make_step(*captured_, step, true, queue);
    make_step(*expected_, step, false, *eager_);
  }
  queue.synchronize();
  eager_->synchronize();
  EXPECT_TRUE(*captured_ == *expected_);
  EXPECT_TRUE(queue.done(50));
}

// They wait for room in the table, and the next step waits for them.
TEST_F(LaunchQueueSteps, CallsBetweenStepsKeepTheirOrder) {
  LaunchQueue& queue = this->queue();
  const Model::Step step{{gradient(0), gradient(1)}};
  for (int i = 0; i < 5; ++i) {
    make_step(*captured_, step, true, queue);
    make_step(*expected_, step, false, *eager_);
    captured_->enqueue(step, queue);
    expected_->enqueue(step, *eager_);
  }
  queue.synchronize();
  eager_->synchronize();
  EXPECT_TRUE(*captured_ == *expected_);
}

}  // namespace
}  // namespace muster::kernels::cuda
