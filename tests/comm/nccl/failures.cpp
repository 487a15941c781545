// Ranks that break the contract over NCCL, and at last one that is killed.
#include <mpi.h>

#include "ranks.h"
#include "support/rank_programs.h"

namespace muster::test {
namespace {

// Long enough to make a communicator.
const CommOptions kOptions{std::chrono::seconds(6)};

// A rank that arrives after the others gave up finds their NCCL gone, and can report only that it has failed.
FailureCase as_seen_by(int32_t rank, int32_t size, FailureCase failure) {
  const bool is_late = failure.words.back().find("did not arrive") != std::string::npos;
  if (is_late && rank == size - 1) failure.words.resize(1);
  return failure;
}

bool contract_is_broken(Communicator& mpi) {
  bool fine = true;
  for (const FailureCase& failure : failure_cases()) {
    MPI_Barrier(MPI_COMM_WORLD);  // a culprit may still be asleep
    auto comm = make_nccl_communicator(mpi, kOptions);
    const int32_t rank = mpi.rank();
    fine &= report(rank, failure.name, run_failure_case(as_seen_by(rank, mpi.size(), failure), std::move(comm)));
  }
  return fine;
}

bool a_rank_makes_no_communicator(Communicator& mpi) {
  NcclId id = mpi.rank() == 0 ? make_nccl_id() : NcclId{};
  mpi.broadcast(&id, sizeof id, 0, "id")->wait();
  std::string wrong;
  if (mpi.rank() != mpi.size() - 1) {
    const auto start = std::chrono::steady_clock::now();
    try {
      make_nccl_communicator(id, mpi.rank(), mpi.size(), kOptions);
      wrong = "no CommError";
    } catch (const CommError& error) {
      std::printf("rank %d: %s\n", mpi.rank(), error.what());
    }
    if (std::chrono::steady_clock::now() - start > 3 * kOptions.timeout) wrong = "waited for longer than the timeout";
  }
  return report(mpi.rank(), "a_rank_makes_no_communicator", wrong);
}

int run() {
  const auto mpi = make_mpi_communicator();
  claim_a_machine(mpi->rank());
  bool fine = contract_is_broken(*mpi);
  fine &= a_rank_makes_no_communicator(*mpi);
  MPI_Barrier(MPI_COMM_WORLD);
  fine &= a_rank_is_killed(*make_nccl_communicator(*mpi, {std::chrono::seconds(20)}));
  return conclude(mpi->rank(), fine ? "" : "failed");
}

}  // namespace
}  // namespace muster::test

int main(int argc, char** argv) {
  using namespace muster::test;
  return run_or_skip(argc, argv, run);
}
