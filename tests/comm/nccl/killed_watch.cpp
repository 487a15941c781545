// A rank is killed while the others watch a stream that waits for its messages. Prints "rank R: passed" if they are
// told, and their streams come to rest.
#include <csignal>

#include "muster/error.h"
#include "ranks.h"

namespace muster::test {
namespace {

using kernels::cuda::DeviceVector;

std::string find_wrong(Communicator& comm) {
  const int32_t culprit = comm.size() - 1;
  constexpr int64_t kBytes = 1 << 20;
  const DeviceVector<uint8_t> out(kBytes);
  const DeviceVector<uint8_t> in(static_cast<size_t>(comm.size() * kBytes));
  std::vector<Send> sends;
  std::vector<Receive> receives;
  for (int32_t peer = 0; peer < comm.size(); ++peer) {
    sends.push_back({peer, out.data(), kBytes});
    receives.push_back({peer, in.data() + peer * kBytes, kBytes});
  }
  TestStream stream;
  StreamCommunicator& streams = *comm.on_stream();
  std::string said;
  try {
    for (int round = 0; round < 50; ++round) {
      if (round == 20 && comm.rank() == culprit) std::raise(SIGKILL);
      streams.exchange(sends, receives, "round", stream);
      stream.watch(streams, "round");
    }
  } catch (const CommError& error) {
    said = error.what();
  }
  std::printf("rank %d: %s\n", comm.rank(), said.c_str());
  std::fflush(stdout);
  if (said.find("'round'") == std::string::npos) return "does not name the operation";
  if (said.find("rank " + std::to_string(culprit)) == std::string::npos) return "does not name the rank";
  if (cudaStreamSynchronize(stream) != cudaSuccess) return "the stream is broken";
  try {
    streams.exchange(sends, receives, "afterwards", stream);
    return "a dead communicator goes on";
  } catch (const CommError& error) {
    if (std::string(error.what()).find("exchange 'afterwards'") == std::string::npos) return "does not say what it was";
  }
  return "";
}

int run() {
  const auto mpi = make_mpi_communicator();
  claim_a_machine(mpi->rank());
  const auto comm = make_nccl_communicator(*mpi, {std::chrono::seconds(20)});
  const std::string wrong = find_wrong(*comm);
  std::printf("rank %d: %s\n", mpi->rank(), wrong.empty() ? "passed" : wrong.c_str());
  std::fflush(stdout);
  return wrong.empty() ? 0 : 1;
}

}  // namespace
}  // namespace muster::test

int main(int argc, char** argv) {
  using namespace muster::test;
  return run_or_skip(argc, argv, run);
}
