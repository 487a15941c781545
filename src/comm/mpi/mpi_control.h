// Notices between the ranks of a communicator, apart from its messages: a rank gave up, or left normally.
#pragma once

#include <memory>
#include <mpi.h>
#include <optional>
#include <string>
#include <vector>

#include "comm/operation.h"
#include "comm/process.h"

namespace muster::comm::mpi {

struct Notice {
  enum class Kind : uint8_t { kFailed, kLeft };
  Kind kind = Kind::kFailed;
  ErrorCode code = ErrorCode::kOther;  // of a failure
  int32_t rank = 0;
  int64_t operations = 0;  // that the sender has started
  char cause[496] = {};    // of a failure; ends with a zero
};

class Control {
 public:
  // All ranks call it with a duplicate of their communicator, and wait for each other until the deadline.
  Control(MPI_Comm comm, Clock::time_point deadline);
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // The next notice, if one has arrived.
  std::optional<Notice> poll();
  // Tells all other ranks, and waits a moment for the notices to be sent.
  void tell(Notice::Kind kind, int64_t operations, const Failure& cause);
  // Whether that rank's process is known to be dead.
  bool is_gone(int32_t rank) const;

  // Every rank has told that it leaves, and this one has heard it: gives the duplicate back.
  void close();

 private:
  void listen();

  MPI_Comm comm_;
  int32_t rank_ = 0;
  std::unique_ptr<std::vector<ProcessId>> processes_;  // by rank
  Notice incoming_;
  MPI_Request listening_ = MPI_REQUEST_NULL;
  // What tell() sends must outlive it: kept until the end.
  std::vector<std::unique_ptr<Notice>> told_;
};

// Polls a collective until it is done and returns what it wrote; throws CommError past the deadline, and then `result`
// is left to MPI, which may still write to it.
void poll_until(MPI_Request& request, Clock::time_point deadline, std::string_view call);
template <typename T>
T* finish(MPI_Request& request, T* result, Clock::time_point deadline, std::string_view call) {
  poll_until(request, deadline, call);
  return result;
}

}  // namespace muster::comm::mpi
