// Ranks that break the contract over NCCL, and at last one that is killed. Prints "rank R: passed" if all went well;
// nothing else counts, since mpirun --enable-recovery hides exit statuses.
#include <csignal>
#include <mpi.h>

#include "muster/error.h"
#include "ranks.h"
#include "support/comm_contract.h"

namespace muster::test {
namespace {

// Long enough to make a communicator.
const CommOptions kOptions{std::chrono::seconds(6)};

bool report(int32_t rank, const std::string& name, const std::string& wrong) {
  std::printf("rank %d: %s: %s\n", rank, name.c_str(), wrong.empty() ? "fine" : wrong.c_str());
  std::fflush(stdout);
  return wrong.empty();
}

// A rank that comes after the others gave up finds their NCCL gone: that it has failed is all it can say.
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

// The last rank dies in the middle of an exchange.
bool a_rank_is_killed(Communicator& mpi) {
  MPI_Barrier(MPI_COMM_WORLD);
  const auto comm = make_nccl_communicator(mpi, {std::chrono::seconds(20)});
  const int32_t culprit = comm->size() - 1;
  constexpr int64_t kBytes = 1 << 20;
  std::vector<uint8_t> out(kBytes);
  std::vector<uint8_t> in(static_cast<size_t>(comm->size() * kBytes));
  std::string said;
  try {
    for (int round = 0; round < 50; ++round) {
      const auto request = comm->all_gather(out.data(), in.data(), kBytes, "round");
      if (round == 20 && comm->rank() == culprit) std::raise(SIGKILL);
      request->wait();
    }
  } catch (const CommError& error) {
    said = error.what();
  }
  std::printf("rank %d: %s\n", comm->rank(), said.c_str());
  const bool named = said.find("all_gather 'round'") != std::string::npos &&
                     said.find("rank " + std::to_string(culprit)) != std::string::npos;
  return report(comm->rank(), "a_rank_is_killed", named ? "" : "does not name the rank and the operation");
}

int run() {
  const auto mpi = make_mpi_communicator();
  claim_a_machine(mpi->rank());
  bool fine = contract_is_broken(*mpi);
  fine &= a_rank_makes_no_communicator(*mpi);
  fine &= a_rank_is_killed(*mpi);
  if (fine) std::printf("rank %d: passed\n", mpi->rank());
  std::fflush(stdout);
  return fine ? 0 : 1;
}

}  // namespace
}  // namespace muster::test

int main(int argc, char** argv) {
  using namespace muster::test;
  return run_or_skip(argc, argv, run);
}
