// The contract over MPI: all ranks run all cases in step.
#include <gtest/gtest.h>

#include "comm/mpi/mpi_communicator.h"
#include "support/rank_programs.h"

namespace muster::test {
namespace {

using comm::mpi::Limits;
using comm::mpi::make_communicator;

const CommOptions kOptions{std::chrono::seconds(60)};

void add_cases(const char* suite, const Limits& limits) {
  add_contract_cases(suite, [limits](const ContractCase& contract) {
    const auto comm = make_communicator(kOptions, limits);
    contract.run(*comm);
  });
}

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
  // As for messages of more than 2^31 bytes, in small, and numbers that wrap.
  Limits small;
  small.piece_bytes = 1000;
  small.sequence_bits = 8;
  add_cases("MpiContractInPieces", small);

  print_as(muster::make_mpi_communicator(kOptions)->rank());
  return RUN_ALL_TESTS();
}
