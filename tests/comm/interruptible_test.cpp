#include "comm/interruptible.h"

#include <atomic>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"
#include "support/comm_contract.h"
#include "support/forwarding.h"
#include "support/run_ranks.h"

namespace muster::test {
namespace {

struct Interrupt {};

std::unique_ptr<Communicator> never_interrupted(std::unique_ptr<Communicator> inner) {
  return comm::make_interruptible(std::move(inner), [] {});
}

template <typename Param>
std::string case_name(const Param& param) {
  return std::get<0>(param).name + "_on_" + std::to_string(std::get<1>(param));
}

class InterruptibleContract : public testing::TestWithParam<std::tuple<ContractCase, int32_t>> {};

TEST_P(InterruptibleContract, holds) {
  const auto& [contract, ranks] = GetParam();
  auto communicators = make_local_communicators(ranks);
  run_ranks(ranks, [&, &run = contract.run](int32_t rank) {
    const auto comm = never_interrupted(std::move(communicators[rank]));
    run(*comm);
  });
}

INSTANTIATE_TEST_SUITE_P(Interruptible, InterruptibleContract,
                         testing::Combine(testing::ValuesIn(contract_cases()), testing::Values(1, 2, 3)),
                         [](const auto& test) { return case_name(test.param); });

class InterruptibleFailure : public testing::TestWithParam<std::tuple<FailureCase, int32_t>> {};

TEST_P(InterruptibleFailure, is_told_to_all) {
  const auto& [failure, ranks] = GetParam();
  auto communicators = make_local_communicators(ranks, {std::chrono::seconds(1)});
  run_ranks(ranks, [&, &one = failure](int32_t rank) {
    EXPECT_EQ(run_failure_case(one, never_interrupted(std::move(communicators[rank]))), "") << "rank " << rank;
  });
}

INSTANTIATE_TEST_SUITE_P(Interruptible, InterruptibleFailure,
                         testing::Combine(testing::ValuesIn(failure_cases()), testing::Values(3)),
                         [](const auto& test) { return case_name(test.param); });

// Ctrl-C took effect when the other rank arrived, or after the timeout.
TEST(Interruptible, a_wait_ends_when_the_check_throws_and_the_peer_is_told) {
  auto communicators = make_local_communicators(2, {std::chrono::minutes(30)});
  int checks = 0;
  const auto comm = comm::make_interruptible(std::move(communicators[0]), [&] {
    if (++checks == 2) throw Interrupt();
  });
  {
    const auto request = comm->barrier("meet");
    EXPECT_THROW(request->wait(), Interrupt);
    // Its destructor does not wait for the peer.
  }
  EXPECT_EQ(checks, 2);
  EXPECT_EQ(error_of([&] { comm->barrier("again")->wait(); }), "barrier 'again': rank 0 aborted: interrupted");
  EXPECT_EQ(error_of([&] { communicators[1]->barrier("meet")->wait(); }),
            "barrier 'meet': rank 0 aborted: interrupted");
}

TEST(Interruptible, what_is_done_needs_no_check) {
  auto communicators = make_local_communicators(1);
  const auto comm = comm::make_interruptible(std::move(communicators[0]), [] { throw Interrupt(); });
  comm->barrier("alone")->wait();
  EXPECT_EQ(comm->on_stream(), nullptr);
}

// A stream on which nothing ends.
class StuckStream final : public ForwardingCommunicator, public StreamCommunicator {
 public:
  using ForwardingCommunicator::all_reduce;
  using ForwardingCommunicator::exchange;
  using ForwardingCommunicator::ForwardingCommunicator;

  StreamCommunicator* on_stream() override { return this; }
  void exchange(std::span<const Send>, std::span<const Receive>, std::string_view, void*) override { ++enqueued; }
  void all_reduce(int64_t*, int64_t, std::string_view, void*) override { ++enqueued; }
  void watch(const std::function<bool()>& done, std::string_view) override {
    while (!done()) std::this_thread::yield();
  }

  int enqueued = 0;
};

TEST(Interruptible, a_watch_ends_when_the_check_throws_and_the_peer_is_told) {
  auto communicators = make_local_communicators(2, {std::chrono::minutes(30)});
  auto stuck = std::make_unique<StuckStream>(std::move(communicators[0]));
  const StuckStream& stream = *stuck;
  std::atomic<bool> pressed{false};
  const auto comm = comm::make_interruptible(std::move(stuck), [&] {
    if (pressed) throw Interrupt();
  });
  comm->on_stream()->exchange({}, {}, "wave", nullptr);
  comm->on_stream()->all_reduce(nullptr, 0, "norm", nullptr);
  EXPECT_EQ(stream.enqueued, 2);
  comm->on_stream()->watch([] { return true; }, "step 1");
  pressed = true;
  EXPECT_THROW(comm->on_stream()->watch([] { return false; }, "step 2"), Interrupt);
  EXPECT_EQ(error_of([&] { communicators[1]->barrier("meet")->wait(); }),
            "barrier 'meet': rank 0 aborted: interrupted");
}

}  // namespace
}  // namespace muster::test
