// Ranks that break the contract over MPI, and at last one that is killed. Prints "rank R: passed" if all went well;
// nothing else counts, since mpirun --enable-recovery hides exit statuses.
#include <csignal>
#include <cstdio>
#include <mpi.h>

#include "comm/mpi/mpi_communicator.h"
#include "muster/error.h"
#include "support/comm_contract.h"

namespace muster::test {
namespace {

const CommOptions kOptions{std::chrono::seconds(2)};

bool report(int32_t rank, const std::string& name, const std::string& wrong) {
  std::printf("rank %d: %s: %s\n", rank, name.c_str(), wrong.empty() ? "fine" : wrong.c_str());
  std::fflush(stdout);
  return wrong.empty();
}

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

// The last rank dies in the middle of an exchange of messages that do not fit MPI's own buffers.
bool a_rank_is_killed() {
  MPI_Barrier(MPI_COMM_WORLD);
  const auto comm = make_mpi_communicator({std::chrono::seconds(20)});
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

}  // namespace
}  // namespace muster::test

int main() {
  using namespace muster::test;
  const int32_t rank = muster::make_mpi_communicator()->rank();
  muster::comm::mpi::Limits small;
  small.piece_bytes = 450;
  bool fine = contract_is_broken({});
  fine &= contract_is_broken(small);
  fine &= a_rank_is_killed();
  if (fine) std::printf("rank %d: passed\n", rank);
  return fine ? 0 : 1;
}
