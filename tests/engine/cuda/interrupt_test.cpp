// Ctrl-C in a step that waits for another rank: the check of an interruptible communicator throws.
#include <atomic>
#include <exception>
#include <latch>

#include <gtest/gtest.h>

#include "comm/interruptible.h"
#include "muster/error.h"
#include "muster/optimizer.h"
#include "on_device.h"
#include "support/run_ranks.h"

namespace muster {
namespace {

struct Pressed final : std::exception {
  const char* what() const noexcept override { return "pressed"; }
};

class Interrupt : public test::OnDevice {};

// It took effect only when the other rank came, or after the timeout.
TEST_F(Interrupt, EndsAStepThatWaitsAndTellsTheOtherRank) {
  const Problem problem = test::two_parameters(2);
  auto communicators = make_local_communicators(2, {std::chrono::minutes(30)});
  test::Training streamed;
  test::over_streams(streamed);
  std::atomic<bool> pressed{false};
  std::latch ended(1);
  test::run_ranks(2, [&](int32_t rank) {
    std::unique_ptr<Communicator> comm = std::move(communicators[rank]);
    if (streamed.tamper) comm = streamed.tamper(std::move(comm));
    comm = comm::make_interruptible(std::move(comm), [&, rank] {
      if (rank == 0 && pressed) throw Pressed();
    });
    test::Shards shards(problem, rank);
    Optimizer optimizer(problem, test::gpu_options(), *comm, shards.memory);
    const auto steps = [&] {
      for (uint64_t step = 0; step < 4; ++step) optimizer.step(shards.gradients(step));
      optimizer.synchronize();
    };
    steps();
    if (rank == 0) {
      pressed = true;
      EXPECT_THROW(steps(), Pressed);
      ended.count_down();
    } else {
      ended.wait();
      EXPECT_THROW(steps(), CommError);
    }
    EXPECT_THROW(optimizer.step(shards.gradients(0)), CommError);
  });
}

}  // namespace
}  // namespace muster
