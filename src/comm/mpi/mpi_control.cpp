#include "comm/mpi/mpi_control.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "comm/backoff.h"
#include "comm/mpi/mpi_library.h"
#include "muster/error.h"

namespace muster::comm::mpi {

namespace {

constexpr std::chrono::milliseconds kTellTime{500};

}  // namespace

void poll_until(MPI_Request& request, Clock::time_point deadline, std::string_view call) {
  Backoff backoff;
  for (int done = 0;; backoff.pause()) {
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), call);
    if (done) return;
    if (Clock::now() >= deadline) {
      throw CommError({fmt::format("make_mpi_communicator: not all ranks called it within the timeout ({})", call),
                       ErrorCode::kRankMissing});
    }
  }
}

Control::Control(MPI_Comm comm, Clock::time_point deadline) : comm_(comm) {
  int size = 0;
  int rank = 0;
  check(MPI_Comm_size(comm_, &size), "MPI_Comm_size");
  check(MPI_Comm_rank(comm_, &rank), "MPI_Comm_rank");
  rank_ = rank;
  auto processes = std::make_unique<std::vector<ProcessId>>(static_cast<size_t>(size));
  (*processes)[rank] = this_process();
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, processes->data(), sizeof(ProcessId), MPI_BYTE, comm_, &request),
        "MPI_Iallgather");
  processes_.reset(finish(request, processes.release(), deadline, "MPI_Iallgather"));
  listen();
}

void Control::listen() {
  check(MPI_Irecv(&incoming_, sizeof incoming_, MPI_BYTE, MPI_ANY_SOURCE, 0, comm_, &listening_), "MPI_Irecv");
}

std::optional<Notice> Control::poll() {
  int done = 0;
  check(MPI_Test(&listening_, &done, MPI_STATUS_IGNORE), "MPI_Test");
  if (!done) return std::nullopt;
  const Notice notice = incoming_;
  listen();
  return notice;
}

void Control::tell(Notice::Kind kind, int64_t operations, const Failure& cause) {
  auto notice = std::make_unique<Notice>();
  notice->kind = kind;
  notice->rank = rank_;
  notice->operations = operations;
  notice->code = cause.code;
  std::memcpy(notice->cause, cause.text.data(), std::min(cause.text.size(), sizeof notice->cause - 1));
  std::vector<MPI_Request> requests;
  for (int32_t peer = 0; peer < static_cast<int32_t>(processes_->size()); ++peer) {
    if (peer == rank_ || is_gone(peer)) continue;
    // A peer that cannot be told is past helping; the others must hear of it all the same.
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Isend(notice.get(), sizeof(Notice), MPI_BYTE, peer, 0, comm_, &request) == MPI_SUCCESS) {
      requests.push_back(request);
    }
  }
  told_.push_back(std::move(notice));
  const Clock::time_point deadline = Clock::now() + kTellTime;
  Backoff backoff;
  for (int done = 0; !done && Clock::now() < deadline; backoff.pause()) {
    MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
  }
}

bool Control::is_gone(int32_t rank) const { return comm::is_gone((*processes_)[rank], (*processes_)[rank_]); }

void Control::close() {
  check(MPI_Cancel(&listening_), "MPI_Cancel");
  check(MPI_Wait(&listening_, MPI_STATUS_IGNORE), "MPI_Wait");
  check(MPI_Comm_free(&comm_), "MPI_Comm_free");
}

}  // namespace muster::comm::mpi
