// The contract over MPI: all ranks run all cases in step. Rank 0 prints; the others when something is wrong.
#include <cstdio>

#include <gtest/gtest.h>

#include "comm/mpi/mpi_communicator.h"
#include "support/comm_contract.h"

namespace muster::test {
namespace {

using comm::mpi::Limits;
using comm::mpi::make_communicator;

const CommOptions kOptions{std::chrono::seconds(60)};

class Case : public testing::Test {
 public:
  Case(const ContractCase& contract, const Limits& limits) : contract_(contract), limits_(limits) {}

 private:
  void TestBody() override {
    const auto comm = make_communicator(kOptions, limits_);
    contract_.run(*comm);
  }

  const ContractCase& contract_;
  Limits limits_;
};

void add_cases(const char* suite, const Limits& limits) {
  for (const ContractCase& contract : contract_cases()) {
    testing::RegisterTest(suite, contract.name.c_str(), nullptr, nullptr, __FILE__, __LINE__,
                          [&contract, limits] { return new Case(contract, limits); });
  }
}

class FailurePrinter final : public testing::EmptyTestEventListener {
 public:
  explicit FailurePrinter(int32_t rank) : rank_(rank) {}

 private:
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed()) std::fprintf(stderr, "rank %d: %s\n", rank_, result.message());
  }

  int32_t rank_;
};

TEST(Mpi, two_communicators_do_not_mix) {
  const auto first = make_communicator(kOptions, {});
  const auto second = make_communicator(kOptions, {});
  int64_t a[] = {first->rank()};
  int64_t b[] = {100 * second->rank()};
  const auto request = first->all_reduce(std::span<int64_t>(a), ReduceOp::kMax, "same");
  second->all_reduce(std::span<int64_t>(b), ReduceOp::kMax, "same")->wait();
  request->wait();
  EXPECT_EQ(a[0], first->size() - 1);
  EXPECT_EQ(b[0], 100 * (first->size() - 1));
}

}  // namespace
}  // namespace muster::test

int main(int argc, char** argv) {
  using namespace muster::test;
  testing::InitGoogleTest(&argc, argv);
  add_cases("MpiContract", {});
  // Messages past 2^31 bytes in small, and numbers that wrap.
  Limits small;
  small.piece_bytes = 1000;
  small.sequence_bits = 8;
  add_cases("MpiContractInPieces", small);

  const int32_t rank = muster::make_mpi_communicator(kOptions)->rank();
  if (rank != 0) {
    testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new FailurePrinter(rank));
  }
  return RUN_ALL_TESTS();
}
