// A rank is killed while the others watch a stream that waits for its messages: they get an error that names it, and
// their streams can be synchronized.
#include "ranks.h"

namespace muster::test {
namespace {

using kernels::cuda::DeviceVector;

constexpr auto kTimeout = std::chrono::seconds(20);

std::string find_wrong(Communicator& comm, Communicator&) {
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
  const std::string said = comm_error([&] {
    for (int round = 0; round < 50; ++round) {
      if (round == 20 && comm.rank() == culprit) std::raise(SIGKILL);
      streams.exchange(sends, receives, "round", stream);
      stream.watch(streams, "round");
    }
  });
  print_line(comm.rank(), said);
  if (said.find("'round'") == std::string::npos) return "does not name the operation";
  if (said.find("rank " + std::to_string(culprit)) == std::string::npos) return "does not name the rank";
  if (cudaStreamSynchronize(stream) != cudaSuccess) return "the stream is broken";
  const std::string again = comm_error([&] { streams.exchange(sends, receives, "afterwards", stream); });
  if (again.empty()) return "a dead communicator goes on";
  if (again.find("exchange 'afterwards'") == std::string::npos) return "does not say what it was";
  return "";
}

}  // namespace
}  // namespace muster::test

int main(int argc, char** argv) {
  using namespace muster::test;
  return run_program(argc, argv, kTimeout, find_wrong);
}
