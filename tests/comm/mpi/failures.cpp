// Ranks that break the contract over MPI, and at last one that is killed.
#include <mpi.h>

#include "comm/mpi/mpi_communicator.h"
#include "support/rank_programs.h"

namespace muster::test {
namespace {

const CommOptions kOptions{std::chrono::seconds(2)};

bool contract_is_broken(const comm::mpi::Limits& limits) {
  bool fine = true;
  for (const FailureCase& failure : failure_cases()) {
    MPI_Barrier(MPI_COMM_WORLD);  // a culprit may still be asleep
    auto comm = comm::mpi::make_communicator(kOptions, limits);
    const int32_t rank = comm->rank();
    fine &= report(rank, failure.name, run_failure_case(failure, std::move(comm)));
  }
  return fine;
}

}  // namespace
}  // namespace muster::test

int main() {
  using namespace muster::test;
  const int32_t rank = muster::make_mpi_communicator()->rank();
  muster::comm::mpi::Limits small;
  small.piece_bytes = 450;
  bool fine = contract_is_broken({});
  fine &= contract_is_broken(small);
  MPI_Barrier(MPI_COMM_WORLD);
  fine &= a_rank_is_killed(*muster::make_mpi_communicator({std::chrono::seconds(20)}));
  return conclude(rank, fine ? "" : "failed");
}
