#include "comm/mpi/mpi_library.h"

#include <atomic>
#include <cstdlib>
#include <mutex>

#include <fmt/format.h>

#include "comm/backend_info.h"
#include "muster/error.h"

namespace muster::comm {
namespace mpi {

namespace {

// There is one MPI per process, and so one of this.
std::atomic<int> open_communicators{0};

void finalize_at_exit() {
  if (open_communicators == 0 && !finalized()) MPI_Finalize();
}

}  // namespace

void initialize() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (finalized()) throw CommError("make_mpi_communicator: MPI has been finalized already");
  int done = 0;
  check(MPI_Initialized(&done), "MPI_Initialized");
  if (done) return;
  // abort() may come from another thread, and a process may have several communicators.
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  std::atexit(finalize_at_exit);
}

bool finalized() {
  int done = 0;
  return MPI_Finalized(&done) != MPI_SUCCESS || done;
}

void opened() { ++open_communicators; }

void closed() { --open_communicators; }

std::string error_text(int code) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) return fmt::format("MPI error {}", code);
  return std::string(text, static_cast<size_t>(length));
}

void check(int code, std::string_view call) {
  if (code != MPI_SUCCESS) throw CommError(fmt::format("{}: {}", call, error_text(code)));
}

}  // namespace mpi

MpiInfo mpi_info() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return {.built_in = true};
  const std::string_view all(text, static_cast<size_t>(length));  // "Open MPI v4.1.4, package: ..."
  return {.built_in = true, .version = std::string(all.substr(0, all.find_first_of(",\n")))};
}

}  // namespace muster::comm
