// What programs share that run ranks over NCCL. All ranks may use one GPU: NCCL allows that only for ranks that claim
// to be on different machines, and then sends everything over sockets.
#pragma once

#include <cstdio>
#include <cstring>
#include <functional>
#include <string>

#include "kernels/cuda/device_memory.h"
#include "muster/communicator.h"
#include "support/rank_programs.h"

namespace muster::test {

constexpr int kSkipped = 77;

// Prints why the test cannot run here, if so. Scripts call the program with --check first: mpirun --enable-recovery
// hides exit statuses.
inline bool must_skip() {
  std::string reason = kernels::cuda::why_no_device();
  if (reason.empty() && !nccl_available()) reason = "libnccl.so.2 cannot be opened";
  if (!reason.empty()) std::printf("skipped: %s\n", reason.c_str());
  return !reason.empty();
}

inline bool is_check(int argc, char** argv) { return argc > 1 && std::strcmp(argv[1], "--check") == 0; }

// Runs the program unless it cannot run here, or is only asked whether it can.
template <typename Run>
int run_or_skip(int argc, char** argv, const Run& run) {
  if (must_skip()) return kSkipped;
  return is_check(argc, argv) ? 0 : run();
}

// Before NCCL and the device are first used.
inline void claim_a_machine(int32_t rank) {
  setenv("NCCL_HOSTID", std::to_string(rank).c_str(), 1);
  setenv("NCCL_SOCKET_IFNAME", "lo", 0);
}

// A stream and an event behind what is on it.
class TestStream {
 public:
  TestStream() {
    using kernels::cuda::check;
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  ~TestStream() {
    cudaEventDestroy(event_);
    cudaStreamDestroy(stream_);
  }

  operator cudaStream_t() const { return stream_; }
  void watch(StreamCommunicator& comm, const char* label) {
    kernels::cuda::check(cudaEventRecord(event_, stream_), "cudaEventRecord");
    comm.watch([&] { return cudaEventQuery(event_) != cudaErrorNotReady; }, label);
  }

 private:
  cudaStream_t stream_ = nullptr;
  cudaEvent_t event_ = nullptr;
};

// The main of a program: runs `find_wrong` on a NCCL communicator and the MPI communicator that it was made with.
inline int run_program(int argc, char** argv, std::chrono::milliseconds timeout,
                       const std::function<std::string(Communicator& comm, Communicator& host)>& find_wrong) {
  return run_or_skip(argc, argv, [&] {
    const auto host = make_mpi_communicator({timeout});
    claim_a_machine(host->rank());
    const auto comm = make_nccl_communicator(*host, {timeout});
    std::string wrong;
    try {
      wrong = find_wrong(*comm, *host);
    } catch (const std::exception& error) {
      wrong = error.what();
    }
    return conclude(host->rank(), wrong);
  });
}

}  // namespace muster::test
