// The contract over threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "muster/error.h"
#include "support/comm_contract.h"
#include "support/run_ranks.h"

namespace muster::test {
namespace {

using testing::HasSubstr;

constexpr int32_t kRanks[] = {1, 2, 3, 5, 8};
constexpr std::chrono::milliseconds kShort{300};

template <typename Param>
std::string case_name(const Param& param) {
  return std::get<0>(param).name + "_on_" + std::to_string(std::get<1>(param));
}

// [contract]
class LocalContract : public testing::TestWithParam<std::tuple<ContractCase, int32_t>> {};

TEST_P(LocalContract, holds) {
  const auto& [contract, ranks] = GetParam();
  run_ranks(ranks, contract.run);
}

INSTANTIATE_TEST_SUITE_P(Local, LocalContract,
                         testing::Combine(testing::ValuesIn(contract_cases()), testing::ValuesIn(kRanks)),
                         [](const auto& test) { return case_name(test.param); });
// [/contract]

class LocalFailure : public testing::TestWithParam<std::tuple<FailureCase, int32_t>> {};

TEST_P(LocalFailure, is_told_to_all) {
  const auto& [failure, ranks] = GetParam();
  auto communicators = make_local_communicators(ranks, {std::chrono::seconds(1)});
  run_ranks(ranks, [&](int32_t rank) {
    EXPECT_EQ(run_failure_case(failure, std::move(communicators[rank])), "") << "rank " << rank;
  });
}

INSTANTIATE_TEST_SUITE_P(Local, LocalFailure,
                         testing::Combine(testing::ValuesIn(failure_cases()), testing::Values(2, 3, 8)),
                         [](const auto& test) { return case_name(test.param); });

TEST(Local, names_all_missing_ranks) {
  const auto communicators = make_local_communicators(5, {kShort});
  run_ranks(2, [&](int32_t rank) {
    EXPECT_EQ(error_of([&] { communicators[rank]->barrier("meet")->wait(); }),
              "barrier 'meet': ranks 2, 3, 4 did not arrive within 300 ms");
  });
}

TEST(Local, waits_only_for_ranks_it_has_messages_with) {
  const auto communicators = make_local_communicators(3, {kShort});
  const int32_t sent = 42;
  int32_t received = 0;
  const Send send{1, &sent, sizeof sent};
  const Receive receive{0, &received, sizeof received};
  const auto first = communicators[0]->exchange({&send, 1}, {}, "pair");
  const auto second = communicators[1]->exchange({}, {&receive, 1}, "pair");
  EXPECT_TRUE(first->test());
  EXPECT_TRUE(second->test());
  EXPECT_EQ(received, 42);
}

TEST(Local, notices_a_message_nobody_asked_for) {
  const auto communicators = make_local_communicators(2, {kShort});
  const int32_t sent = 42;
  const Send send{1, &sent, sizeof sent};
  const auto idle = communicators[1]->exchange({}, {}, "pair");
  EXPECT_TRUE(idle->test());
  EXPECT_EQ(error_of([&] {
              communicators[0]->exchange({&send, 1}, {}, "pair");
            }),
            "exchange 'pair': rank 0 sends 4 bytes to rank 1, which expects 0");
}

TEST(Local, what_a_leaving_rank_has_started_still_ends) {
  auto communicators = make_local_communicators(2, {kShort});
  const int32_t sent = 42;
  int32_t received = 0;
  const Send send{1, &sent, sizeof sent};
  const Receive receive{0, &received, sizeof received};
  const auto request = communicators[0]->exchange({&send, 1}, {}, "last words");
  communicators[0].reset();
  communicators[1]->exchange({}, {&receive, 1}, "last words")->wait();
  EXPECT_EQ(received, 42);
  request->wait();
  EXPECT_EQ(error_of([&] { communicators[1]->barrier("alone")->wait(); }), "barrier 'alone': rank 0 left");
}

TEST(Local, a_request_may_outlive_all_communicators) {
  auto communicators = make_local_communicators(2, {kShort});
  const auto request = communicators[0]->barrier("never");
  communicators.clear();
  EXPECT_THAT(error_of([&] { request->wait(); }), HasSubstr("barrier 'never': rank 1 left"));
}

TEST(Local, operations_that_finished_before_a_failure_stay_finished) {
  const auto communicators = make_local_communicators(2, {kShort});
  const auto first = communicators[0]->barrier("fine");
  const auto second = communicators[1]->barrier("fine");
  const auto open = communicators[0]->barrier("open");
  communicators[1]->abort("enough");
  first->wait();
  EXPECT_TRUE(second->test());
  EXPECT_EQ(error_of([&] { open->test(); }), "barrier 'open': rank 1 aborted: enough");
}

TEST(Local, groups_do_not_touch_each_other) {
  auto broken = make_local_communicators(3, {kShort});
  broken[1]->abort("enough");
  run_ranks(3, [](Communicator& comm) { comm.barrier("fine")->wait(); });
  EXPECT_THAT(error_of([&] { broken[0]->barrier("dead"); }), HasSubstr("rank 1 aborted: enough"));
}

// A failure while a peer copies must not hand the buffers back before the copy is over: sanitizers watch this one.
TEST(Local, buffers_stay_until_a_running_copy_is_over) {
  for (int round = 0; round < 30; ++round) {
    run_ranks(3, [](Communicator& comm) {
      std::vector<uint8_t> out(1 << 20, uint8_t{1});
      std::vector<uint8_t> in(3 << 20);
      try {
        const auto request = comm.all_gather(out.data(), in.data(), 1 << 20, "big");
        if (comm.rank() == 2) comm.abort("enough");
        request->wait();
      } catch (const CommError&) {
      }
      out.assign(out.size(), 0);
      in.assign(in.size(), 0);
    });
  }
}

TEST(Local, refuses_bad_options) {
  EXPECT_THROW(make_local_communicators(0), InvalidArgument);
  EXPECT_THROW(make_local_communicators(2, {std::chrono::milliseconds(0)}), InvalidArgument);
}

}  // namespace
}  // namespace muster::test
